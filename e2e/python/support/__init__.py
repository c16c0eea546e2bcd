"""The base of the tests: the real server, a scripted receiver, and waiting without sleeping."""
