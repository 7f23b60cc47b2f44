{{- define "stream-dedup.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}

{{- define "stream-dedup.fullname" -}}
{{- $name := include "stream-dedup.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- /* Labels that select the pods of this release, or of one component: (list $ COMPONENT). */ -}}
{{- define "stream-dedup.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "stream-dedup.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- /* Name and labels of an object: (list $ SUFFIX COMPONENT); both may be empty. */ -}}
{{- define "stream-dedup.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "stream-dedup.fullname" $root }}{{ with index . 1 }}-{{ . }}{{ end }}
labels:
  {{- include "stream-dedup.selector" (list $root (index . 2)) | nindent 2 }}
  {{- include "stream-dedup.labels" $root | nindent 2 }}
{{- end -}}

{{- define "stream-dedup.labels" -}}
app.kubernetes.io/part-of: stream-dedup
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "stream-dedup.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "stream-dedup.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "stream-dedup.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- /* Environment variables of the pods: the chart's settings, overridden by those of the values.
       Helm reads unquoted numbers as floating point; print them as 30000000, not as 3e+07. */ -}}
{{- define "stream-dedup.settings" -}}
{{- $name := include "stream-dedup.fullname" . -}}
{{- $hosts := list (printf "%s-index" $name) (printf "%s-index-api" $name) (printf "%s-insights" $name) (printf "%s-search%s" $name (trimSuffix "/" .Values.console.path)) (printf "*.%s-index" $name) "*.svc" "*.svc.cluster.local" -}}
{{- $all := dict "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS" "kafka-bootstrap:9092" "STREAM_DEDUP_HTTP_ALLOWED_HOSTS" (join "," (concat $hosts .Values.console.hosts)) -}}
{{- with .Values.strimzi -}}
{{- if .cluster -}}
{{- $_ := set $all "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS" (printf "%s-kafka-bootstrap:%s" .cluster (ternary "9093" "9092" .users)) -}}
{{- if .users -}}
{{- $_ := set $all "STREAM_DEDUP_KAFKA_SECURITY_PROTOCOL" "SASL_SSL" -}}
{{- $_ := set $all "STREAM_DEDUP_KAFKA_SASL_MECHANISM" "SCRAM-SHA-512" -}}
{{- $_ := set $all "STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE" "/run/secrets/kafka-user/password" -}}
{{- $_ := set $all "STREAM_DEDUP_KAFKA_SSL_CA_LOCATION" "/run/secrets/kafka-ca/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := .Values.settings -}}
{{- if kindIs "float64" $value -}}
{{- $_ := set $all $key (eq $value (floor $value) | ternary ($value | int64 | toString) ($value | toString)) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $all $key (toString $value) -}}
{{- end -}}
{{- end -}}
{{ toYaml $all }}
{{- end -}}

{{- /* The product's default names: `TopicNames.named` in domain/topics.py, and `group` in settings/settings.py. */ -}}
{{- define "stream-dedup.prefix" -}}
{{- with (fromYaml (include "stream-dedup.settings" .)).STREAM_DEDUP_TOPIC_PREFIX -}}
{{ . }}{{ if not (or (hasSuffix "." .) (hasSuffix "-" .)) }}.{{ end }}
{{- end -}}
{{- end -}}

{{- define "stream-dedup.topic" -}}
{{- $root := index . 0 -}}{{- $kind := index . 1 -}}
{{- $settings := fromYaml (include "stream-dedup.settings" $root) -}}
{{- $given := get (dict "documents" "DOCUMENTS" "unique" "UNIQUE" "duplicates" "DUPLICATES" "dlq.documents" "DEAD_LETTERS") $kind -}}
{{- $own := empty $given | ternary "" (get $settings (printf "STREAM_DEDUP_%s" $given)) -}}
{{- $shadow := and (eq (get $settings "STREAM_DEDUP_MODE") "shadow") (has $kind (list "fingerprints" "verdicts" "begun")) -}}
{{ $own | default (printf "%s%s%s" (include "stream-dedup.prefix" $root) (ternary "shadow." "" $shadow) $kind) }}
{{- end -}}

{{- define "stream-dedup.group" -}}
{{- $settings := fromYaml (include "stream-dedup.settings" .) -}}
{{- $group := $settings.STREAM_DEDUP_GROUP | default (printf "%sstream-dedup" (include "stream-dedup.prefix" .)) -}}
{{ $group }}{{ if and (eq (get $settings "STREAM_DEDUP_MODE") "shadow") (not (hasSuffix "-shadow" $group)) }}-shadow{{ end }}
{{- end -}}
