"""Tests of what is deployed: manifests, image, alerts, handbook."""
