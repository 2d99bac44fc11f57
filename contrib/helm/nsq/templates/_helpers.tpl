{{- define "nsq.name" -}}
{{- $prefix := ternary (printf "%s-" .root.Release.Name) .root.Values.namePrefix (kindIs "invalid" .root.Values.namePrefix) -}}
{{- printf "%s%s" $prefix .name -}}
{{- end }}

{{- define "nsq.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "nsq.labels" -}}
{{ include "nsq.selector" . }}
app.kubernetes.io/part-of: nsq
{{- end }}

{{- define "nsq.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  # The volume belongs to this group.
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "nsq.container" -}}
- name: {{ .name }}
  image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  resources: {{ toJson .values.resources }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  readinessProbe:
    httpGet: {path: /readyz, port: http}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /livez, port: http}
    timeoutSeconds: 5
    failureThreshold: 6
{{- end }}

{{- define "nsq.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "nsq.name" . }}
  labels: {{- include "nsq.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "nsq.selector" . | nindent 6 }}
{{- end }}
