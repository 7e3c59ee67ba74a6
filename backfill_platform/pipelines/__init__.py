"""What a user declares: `Pipeline`, its tables and checks (`spec`), columns of Kafka messages (`kafka`), loading (`registry`).

Add here: what a pipeline can say about itself.
Keep out: how a pipeline is run, stored or shown; example pipelines (`examples`).
"""
