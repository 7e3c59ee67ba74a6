"""Find, rebuild, prove and publish damaged hours of event pipelines.

Holds: one package per layer (docs/architecture.md has the picture), and `definitions`, `settings`, `errors`.
Add here: nothing else; new code belongs to a layer.
Keep out: logic in any `__init__`; imports that touch Spark, the network, the environment or the clock.
"""
