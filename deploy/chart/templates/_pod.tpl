{{- /* The pod of a component, used by the template of each component:
       (dict "root" $ "role" NAME "values" KEY "container" YAML "env" YAML "mounts" YAML "volumes" YAML "grace" SECONDS
             "keyed" BOOL "startup" PATH "nodes" RULE). Without "startup" the pod serves no port. */ -}}
{{- define "stream-dedup.pod" -}}
{{- $root := .root -}}
{{- $values := index $root.Values (.values | default .role) -}}
{{- $pods := mustMergeOverwrite (deepCopy $root.Values.pods) $values -}}
{{- $strimzi := and $root.Values.strimzi.cluster $root.Values.strimzi.users -}}
metadata:
  labels:
    {{- include "stream-dedup.selector" (list $root .role) | nindent 4 }}
    app.kubernetes.io/part-of: stream-dedup
    {{- with $pods.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A change of the settings restarts the pods.
    checksum/settings: {{ include "stream-dedup.settings" $root | sha256sum }}
    {{- if and .startup $root.Values.monitoring.scrapeAnnotations }}
    prometheus.io/scrape: "true"
    prometheus.io/port: "8080"
    prometheus.io/path: /metrics
    {{- end }}
    {{- with $pods.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "stream-dedup.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- toYaml $pods.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with $pods.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- else }}
  {{- if .nodes }}
  topologySpreadConstraints:
    {{- range $key, $rule := dict "topology.kubernetes.io/zone" "ScheduleAnyway" "kubernetes.io/hostname" .nodes }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: {{ $rule }}
      labelSelector:
        matchLabels:
          {{- include "stream-dedup.selector" (list $root $.role) | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- end }}
  {{- range $key, $value := dict "imagePullSecrets" $root.Values.imagePullSecrets "nodeSelector" $pods.nodeSelector "tolerations" $pods.tolerations "affinity" $pods.affinity "hostAliases" $pods.hostAliases "priorityClassName" $pods.priorityClassName "initContainers" $pods.extraInitContainers }}
  {{- with $value }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "stream-dedup.image" $root }}
      {{- with $root.Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      {{- .container | nindent 6 }}
      env:
        {{- .env | nindent 8 }}
        # Used only on a processor for which the image contains no compiled kernels.
        - name: STREAM_DEDUP_CACHE_DIR
          value: /var/cache/stream-dedup
        {{- if .keyed }}
        - name: STREAM_DEDUP_KEY_FILE
          value: /run/secrets/stream-dedup/key
        {{- end }}
        {{- if .startup }}
        # Kubernetes 1.35 copies the node's zone to the pod; before that the label is absent, and an empty value counts as none.
        - name: STREAM_DEDUP_KAFKA_CLIENT_RACK
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['topology.kubernetes.io/zone']
        {{- end }}
        {{- if $strimzi }}
        # The KafkaUser with the rights of this role.
        - name: STREAM_DEDUP_KAFKA_SASL_USERNAME
          value: {{ include "stream-dedup.fullname" $root }}-{{ .user | default .role }}
        {{- end }}
        {{- with $pods.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      envFrom:
        - configMapRef:
            name: {{ include "stream-dedup.fullname" $root }}-settings
        {{- range $root.Values.secretsAsEnvironment }}
        - secretRef:
            name: {{ . }}
        {{- end }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- toYaml $pods.securityContext | nindent 8 }}
      {{- if .startup }}
      ports:
        - name: http
          containerPort: 8080
      {{- range $probe, $path := dict "startup" .startup "liveness" "/livez" "readiness" "/readyz" }}
      {{ $probe }}Probe:
        httpGet: {path: {{ $path }}, port: http}
        {{- toYaml (index $pods.probes $probe) | nindent 8 }}
      {{- end }}
      {{- end }}
      volumeMounts:
        {{- with .mounts }}
        {{- . | nindent 8 }}
        {{- end }}
        - {name: cache, mountPath: /var/cache/stream-dedup}
        - {name: tmp, mountPath: /tmp}
        {{- if .keyed }}
        - {name: key, mountPath: /run/secrets/stream-dedup, readOnly: true}
        {{- end }}
        {{- if $strimzi }}
        - {name: kafka-user, mountPath: /run/secrets/kafka-user, readOnly: true}
        - {name: kafka-ca, mountPath: /run/secrets/kafka-ca, readOnly: true}
        {{- end }}
        {{- with $pods.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $pods.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
    - name: cache
      emptyDir: {sizeLimit: {{ .cache | default "64Mi" }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ .tmp | default "16Mi" }}}
    {{- if .keyed }}
    - name: key
      secret:
        secretName: {{ $root.Values.keySecret }}
        defaultMode: 0440
    {{- end }}
    {{- if $strimzi }}
    # The operator renews both Secrets, and a restart reads them.
    - name: kafka-user
      secret:
        secretName: {{ include "stream-dedup.fullname" $root }}-{{ .user | default .role }}
        defaultMode: 0440
        items: [{key: password, path: password}]
    - name: kafka-ca
      secret:
        secretName: {{ $root.Values.strimzi.cluster }}-cluster-ca-cert
        defaultMode: 0440
        items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    {{- with $pods.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* A volume of the component: (list $ NAME VALUES). ReadWriteOncePod, because two pods must never open the same folder. */ -}}
{{- define "stream-dedup.claim" -}}
- metadata:
    name: {{ index . 1 }}
    labels:
      {{- include "stream-dedup.selector" (list (index . 0) "") | nindent 6 }}
  spec:
    accessModes: [ReadWriteOncePod]
    resources:
      requests:
        storage: {{ (index . 2).size }}
    {{- with (index . 2).storageClass }}
    storageClassName: {{ . | quote }}
    {{- end }}
{{- end -}}

{{- /* The kind and metadata of a workload: (list $ ROLE KIND). */ -}}
{{- define "stream-dedup.workload" -}}
{{- $root := index . 0 -}}{{- $role := index . 1 -}}
{{- $values := index $root.Values $role -}}
{{- $pods := mustMergeOverwrite (deepCopy $root.Values.pods) $values -}}
apiVersion: apps/v1
kind: {{ index . 2 }}
metadata:
  {{- include "stream-dedup.metadata" (list $root $role $role) | nindent 2 }}
  {{- with $pods.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if not (and (eq $role "worker") $root.Values.autoscaling.enabled) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "stream-dedup.selector" (list $root $role) | nindent 6 }}
  {{- if eq (index . 2) "StatefulSet" }}
  serviceName: {{ include "stream-dedup.fullname" $root }}-{{ $role }}
  podManagementPolicy: Parallel
  {{- with $pods.updateStrategy }}
  updateStrategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- /* A Service of a component: (list $ SUFFIX ROLE IS_HEADLESS REACHES_PODS_THAT_ARE_NOT_READY). */ -}}
{{- define "stream-dedup.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "stream-dedup.metadata" (list (index . 0) (index . 1) (index . 2)) | nindent 2 }}
spec:
  {{- if index . 3 }}
  clusterIP: None
  {{- end }}
  {{- if index . 4 }}
  # A pod that is not ready must be reachable, because it reports what it waits for.
  publishNotReadyAddresses: true
  {{- end }}
  selector:
    {{- include "stream-dedup.selector" (list (index . 0) (index . 2)) | nindent 4 }}
  ports:
    - {name: http, port: 8080, targetPort: http}
{{- end -}}
