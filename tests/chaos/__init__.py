"""Workers and servers killed at random while turns run; the tapes decide whether anything was lost or doubled."""
