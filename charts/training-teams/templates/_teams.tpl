{{- define "training-teams.labels" -}}
app.kubernetes.io/name: training-teams
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- end }}

{{- /* What the operator's chart calls what its release owns: "shardwise.name" of charts/shardwise/templates/_helpers.tpl. */}}
{{- define "training-teams.operator" -}}
{{- $release := .Values.operatorRelease }}
{{- if contains "shardwise" $release }}{{ $release | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-shardwise" $release | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Every resource of any team's quota: a ClusterQueue lists each in every flavor, or the others could not lend it. */}}
{{- define "training-teams.resources" -}}
{{- $found := dict }}
{{- range .Values.teams }}
{{- range .quota }}
{{- range $resource, $_ := . }}
{{- $_ := set $found $resource true }}
{{- end }}
{{- end }}
{{- end }}
{{- keys $found | sortAlpha | toJson }}
{{- end }}

{{- /* A quota for a flavor that there is not would be 0 of everything, without a word. */}}
{{- define "training-teams.check" -}}
{{- $flavors := list }}
{{- range .Values.flavors }}
{{- $flavors = append $flavors .name }}
{{- end }}
{{- range $team, $of := .Values.teams }}
{{- range $flavor, $_ := $of.quota }}
{{- if not (has $flavor $flavors) }}
{{- fail (printf "teams.%s.quota: given %s, expected flavors; they are %s" $team $flavor (join ", " $flavors)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
