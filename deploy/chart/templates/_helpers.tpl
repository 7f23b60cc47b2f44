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

{{- /* What every object has beside its name, instance, component and part-of. */ -}}
{{- define "stream-dedup.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
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

{{- /* The chart's own settings, then those of the values, which win. */ -}}
{{- define "stream-dedup.settings" -}}
{{- $all := fromYaml (include "stream-dedup.ownSettings" .) -}}
{{- with .Values.console.hosts -}}
{{- $_ := set $all "STREAM_DEDUP_HTTP_ALLOWED_HOSTS" (printf "%s,%s" (get $all "STREAM_DEDUP_HTTP_ALLOWED_HOSTS") (join "," .)) -}}
{{- end -}}
{{- if ne .Values.console.path "/" -}}
{{- $_ := set $all "STREAM_DEDUP_CONSOLE_PREFIX" (trimSuffix "/" .Values.console.path) -}}
{{- end -}}
{{ mustMergeOverwrite $all .Values.settings | toYaml }}
{{- end -}}

{{- /* The name changes with the settings, so that a change restarts the pods. */ -}}
{{- define "stream-dedup.config" -}}
{{ include "stream-dedup.fullname" . }}-{{ include "stream-dedup.settings" . | sha256sum | trunc 10 }}
{{- end -}}

{{- define "stream-dedup.group" -}}
{{ .Values.settings.STREAM_DEDUP_GROUP | default (printf "%sstream-dedup" (.Values.settings.STREAM_DEDUP_TOPIC_PREFIX | default "")) }}
{{- end -}}

{{- define "stream-dedup.documents" -}}
{{ .Values.settings.STREAM_DEDUP_DOCUMENTS | default (printf "%sdocuments" (.Values.settings.STREAM_DEDUP_TOPIC_PREFIX | default "")) }}
{{- end -}}
