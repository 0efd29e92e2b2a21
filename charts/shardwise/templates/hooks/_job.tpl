{{/* A hook's Job down to its container's security: call with (list $ "its name"), at the Job's spec. */}}
{{- define "shardwise.hookJob" -}}
{{- $root := index . 0 -}}
backoffLimit: 3
activeDeadlineSeconds: 240
template:
  metadata:
    labels: {{- include "shardwise.labels" $root | nindent 6 }}
      app.kubernetes.io/component: hook
  spec:
    serviceAccountName: {{ index . 1 }}
    automountServiceAccountToken: true
    enableServiceLinks: false
    restartPolicy: Never
    securityContext: {{- include "shardwise.podSecurity" $root | nindent 6 }}
    {{- with $root.Values.images.pullSecrets }}
    imagePullSecrets: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $root.Values.nodeSelector }}
    nodeSelector: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $root.Values.tolerations }}
    tolerations: {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: hook
        {{- include "shardwise.container" $root | nindent 8 }}
        resources:
          requests: {cpu: 50m, memory: 96Mi}
          limits: {memory: 256Mi}
{{- end }}
