{{- define "stream-dedup.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* The name changes with the settings, so that a change restarts the pods. */ -}}
{{- define "stream-dedup.config" -}}
stream-dedup-{{ .Values.settings | toYaml | sha256sum | trunc 10 }}
{{- end -}}
