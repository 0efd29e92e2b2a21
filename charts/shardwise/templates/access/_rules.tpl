{{/* What the operator does with objects of a namespace. */}}
{{- define "shardwise.namespacedRules" -}}
- apiGroups: [shardwise.dev]
  resources: [trainingjobs]
  verbs: [list, watch, delete]  # delete: ttlAfterFinished
- apiGroups: [shardwise.dev]
  resources: [trainingjobs/status]
  verbs: [update]
- apiGroups: [shardwise.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]  # to own pods that block the job's deletion, where a cluster checks for it
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]  # patch: a slice's followers get its place
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete]  # delete: what earlier rounds were made of
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]  # and nothing else: no Secret can be read
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]  # patch: host 0 becomes an owner; delete: some clusters ask for it there
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]  # patch: another queue, the boost; delete: at a suspend
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]  # that all pods run, that a job has given its quota back, its end
{{- end }}
{{- if .Values.gangScheduling }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]  # the pods that the scheduler places together
{{- end }}
{{- end }}

{{/* What it does with objects of no namespace. */}}
{{- define "shardwise.clusterRules" -}}
- apiGroups: [shardwise.dev]
  resources: [acceleratorclasses]
  verbs: [list, watch]
- apiGroups: [shardwise.dev]
  resources: [acceleratorcatalogs]
  verbs: [list, watch, create]
- apiGroups: [shardwise.dev]
  resources: [acceleratorcatalogs]
  resourceNames: [shardwise]
  verbs: [update]  # what somebody else has changed in it
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]  # of a host: its place, whether it is still there, and notice of its end
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors]
  verbs: [list, watch]  # where the pods of an admitted job may go
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get, list]  # list: the one that counts where a job names none
{{- end }}
{{- end }}
