"""What the tests stand on: the real server, a scripted receiver, and waiting without sleeping."""
