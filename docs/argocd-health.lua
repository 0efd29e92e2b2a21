-- How Argo CD judges a TrainingJob: in the ConfigMap argocd-cm, as resource.customizations.health.shardwise.dev_TrainingJob.
local health = {status = "Progressing", message = "the operator has not looked at it yet"}
local status = obj.status
if status == nil or status.phase == nil then
  return health
end
if status.observedGeneration ~= obj.metadata.generation then
  health.message = "the operator has not looked at its last change yet"
  return health
end
local judged = {Complete = "Healthy", Failed = "Degraded", Suspended = "Suspended"}
health.status = judged[status.phase] or "Progressing"
health.message = status.phase
if status.reason ~= nil then
  health.message = health.message .. ": " .. status.reason
end
if status.message ~= nil and status.message ~= "" then
  health.message = health.message .. ": " .. status.message
end
return health
