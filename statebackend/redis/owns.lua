-- owns tells whether a name of the index is state of the job, as
-- statebackend.Job.Owns does. KEYS: record, index, registry, operator states,
-- assignment, lease.
local root = string.sub(KEYS[2], 1, -#'stateKeys' - 1)
local bookkeeping = {}
for i = 1, #KEYS do bookkeeping[KEYS[i]] = true end
local stageroot = KEYS[1] .. ':stage:'
local function owns(name)
  return string.sub(name, 1, #root) == root and not bookkeeping[name]
    and string.sub(name, 1, #stageroot) ~= stageroot
end
