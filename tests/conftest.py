"""For all tests: Ctrl-C works in child processes, also where the test run itself was started in the background."""

import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
