"""Real machines: what /sys or lstopo says of one, and the machine file that is most like it (`heddle machine`)."""
