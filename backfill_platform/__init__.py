"""Find, rebuild, prove and publish damaged hours of event pipelines.

Holds: the layers of docs/architecture.md, one package each, and the entry points `definitions`, `cli`, `demo`, `stack`.
Add here: nothing; an entry point imports what it needs from the layer below it.
Keep out: logic in any `__init__`; imports that touch Spark, the network, the environment or the clock.
"""
