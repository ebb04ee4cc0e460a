"""Every message that crosses a process; the only code that knows MessagePack and sockets."""
