"""What the tasks squad, triviaqa and wikihop share: reading, windows, official metrics, resumable preparation."""
