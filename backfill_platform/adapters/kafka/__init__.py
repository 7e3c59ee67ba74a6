"""Everything that connects to Kafka: reading topics into hours, sending replays, consuming them, sending session states.

Add here: calls of librdkafka and the registry client. Keep out: what is selected and counted (`topics`), Spark transforms.
"""
