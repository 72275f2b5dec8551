"""The second process of `same_in_every_process`: a request on stdin, numbers on the last line of stdout."""

from __future__ import annotations

import json
import sys

import torch

from attnbench.conformance.repeatability import output_of
from attnbench.conformance.subject import Subject


def main() -> None:
    torch.set_num_threads(1)  # as the first process computes
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]  # a class is looked up where the first process found it
    print("\n" + json.dumps(output_of(Subject.of(request["reference"], request["options"])).flatten().tolist()))


if __name__ == "__main__":
    main()
