"""What agent code sees: one activation in memory, deterministic, with nothing imported beyond protobuf and pydantic."""
