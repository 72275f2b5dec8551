"""Training losses that may run the model again; one file = one regularizer."""
