"""Where sealed segments lie: the hot directory, and the cold tier behind one protocol (06 §16)."""
