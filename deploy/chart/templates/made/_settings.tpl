{{- /* Made by `make deploy-chart` from deploy/ and topics/; do not edit by hand. */ -}}
{{- define "stream-dedup.ownSettings" -}}
STREAM_DEDUP_HTTP_ALLOWED_HOSTS: {{ include "stream-dedup.fullname" . }}-index,{{ include "stream-dedup.fullname" . }}-index-api,{{ include "stream-dedup.fullname" . }}-insights,{{ include "stream-dedup.fullname" . }}-search,*.{{ include "stream-dedup.fullname" . }}-index,*.svc,*.svc.cluster.local
STREAM_DEDUP_KEY_FILE: /run/secrets/stream-dedup/key
{{- end -}}
