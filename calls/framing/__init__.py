"""How a body is cut into messages. A framing knows bytes and boundaries, never what a message means."""
