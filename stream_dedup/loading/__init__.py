"""Write documents from files to Kafka: to the source topic (`load`), or as seeds to the log (`seed`)."""
