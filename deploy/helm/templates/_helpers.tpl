{{- define "quire.labels" -}}
app.kubernetes.io/name: quire
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "quire.metadata" -}}
{{- .Values.metadata | default (printf "zk://%s-zookeeper:2181/quire" .Release.Name) -}}
{{- end -}}

{{- define "quire.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}

{{- /* Of every pod: nobody special, and spread over machines and zones. */ -}}
{{- define "quire.pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "quire.labels" $ | nindent 8 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Of every container: it writes to its volumes and to /tmp. */ -}}
{{- define "quire.container" -}}
image: {{ include "quire.image" (dict "image" .root.Values.image "root" .root) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml .values.resources | nindent 2 }}
{{- end -}}

{{- /* What all processes are told; settings are variables, as everywhere. */ -}}
{{- define "quire.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: QUIRE_METADATA
  value: {{ include "quire.metadata" .root | quote }}
{{- if .root.Values.security.secret }}
- name: QUIRE_SECURITY
  value: /security/security.toml
{{- end }}
{{- range $name, $value := .values.settings }}
- name: QUIRE_{{ upper $name }}
  value: {{ ternary (int64 $value) $value (kindIs "float64" $value) | quote }}
{{- end }}
{{- end -}}

{{- define "quire.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.security.secret }}
- {name: security, mountPath: /security, readOnly: true}
{{- end }}
{{- end -}}

{{- define "quire.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .root.Values.security.secret }}
- name: security
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* A start may take minutes (a journal is read first); one that lives and is not ready is left alone. */ -}}
{{- define "quire.probes" -}}
{{- $port := .root.Values.security.probePort -}}
{{- $scheme := .root.Values.security.probeScheme -}}
startupProbe:
  httpGet: {path: /health/live, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 900
livenessProbe:
  httpGet: {path: /health/live, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{- /* A volume that a pod keeps: (dict "name" … "storage" …). */ -}}
{{- define "quire.claim" -}}
metadata: {name: {{ .name }}}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storage.className }}
  storageClassName: {{ . }}
  {{- end }}
  resources: {requests: {storage: {{ .storage.size }}}}
{{- end -}}
