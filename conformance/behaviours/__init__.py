"""What an nsqd does, one behaviour a test, in the words of the protocol."""
