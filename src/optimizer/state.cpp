#include "optimizer/state.hpp"

#include <algorithm>
#include <numeric>

#include "backend/local_stream.hpp"
#include "backend/ops.hpp"
#include "base/checked.hpp"

namespace muonrt {

namespace {

/// Adds the ranges of the owner state that this rank stores. Matrices are in the order of their
/// index, slices in the order of their first element.
void add_ranges(std::vector<StateEntry>& entries, const std::vector<size_t>& first,
                const Plan& plan, const std::vector<RankChunk>& chunks) {
  for (const RankChunk& chunk : chunks) {
    for (const OwnerState& owner_state : chunk.owner_state) {
      const auto p = static_cast<size_t>(owner_state.param);
      for (size_t i = first[p]; i < first[p + 1]; ++i) {
        StateEntry& entry = entries[i];
        if (entry.location == StateLocation::kOwnedSlices)
          entry.blocks.push_back({-1, owner_state.first, owner_state.numel});
        if (entry.location == StateLocation::kOwnedMatrices)
          entry.blocks.push_back({plan.matrices()[static_cast<size_t>(owner_state.first)].index, 0,
                                  owner_state.numel});
      }
    }
  }
  for (StateEntry& entry : entries) {
    std::sort(entry.blocks.begin(), entry.blocks.end(),
              [](const StateRange& a, const StateRange& b) {
                return std::pair(a.index, a.begin) < std::pair(b.index, b.begin);
              });
    for (const StateRange& range : entry.blocks) entry.numel += range.numel;
  }
}

/// Returns the bytes that an entry needs in the common buffer. The result is 0 for the caller's
/// master weights and for NorMuon's moments, which are stored elsewhere.
int64_t bytes_of(const StateEntry& entry) {
  if (!entry.ours || entry.location == StateLocation::kOwnedNeurons) return 0;
  return padded_bytes(entry.numel, size_of(entry.dtype));
}

[[noreturn]] void throw_absent(StateKind kind, const std::string& name) {
  const char* why = nullptr;
  switch (kind) {
    case StateKind::kMomentum:
      break;
    case StateKind::kVariance:
      why = "' has no variance, because it is a Muon parameter; read its momentum";
      break;
    case StateKind::kMaster:
      why = "' has no master weights, because of its master_kind; read the parameter itself";
      break;
    case StateKind::kRemainder:
      why =
          "' has no remainder, because master_kind is not MUONRT_MASTER_REMAINDER; read the "
          "parameter itself";
      break;
    case StateKind::kNormuon:
      why =
          "' has no NorMuon moments, because its group has NorMuon off, or it has one row or "
          "column; "
          "read its momentum";
      break;
  }
  if (why) throw Error(Status::kInvalidState, cat("param '", name, why));
  throw Error(
      Status::kInvalidArgument,
      cat("state kind is ", static_cast<int32_t>(kind),
          ", but must be 0 (momentum), 1 (variance), 2 (master), 3 (remainder) or 4 (NorMuon); use "
          "one of these"));
}

}  // namespace

const char* name_of(StateKind kind) {
  switch (kind) {
    case StateKind::kMomentum:
      return "momentum";
    case StateKind::kVariance:
      return "variance";
    case StateKind::kMaster:
      return "master";
    case StateKind::kRemainder:
      return "remainder";
    case StateKind::kNormuon:
      return "NorMuon moments";
  }
  return "unknown";
}

StateView view_of(const StateEntry& entry) {
  const bool words = entry.kind == StateKind::kRemainder;
  return {entry.data, entry.numel, words ? 0 : static_cast<int32_t>(entry.dtype), entry.location};
}

std::vector<StateEntry> state_of(const OptimizerSettings& settings, int32_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  const GroupSettings& group = settings.groups[static_cast<size_t>(p.group)];
  const bool adamw = group.role == Role::kAdamW;
  const bool sums = p.grad_layout || !p.layout.partial_dims().empty();
  const StateLocation location = !sums   ? StateLocation::kShard
                                 : adamw ? StateLocation::kOwnedSlices
                                         : StateLocation::kOwnedMatrices;
  std::vector<StateEntry> out = {{param, StateKind::kMomentum, location, group.momentum_dtype}};
  if (adamw) out.push_back({param, StateKind::kVariance, location, DType::kF32});
  if (owns_master(p) || p.master_kind == MasterKind::kCaller)
    out.push_back({param, StateKind::kMaster, StateLocation::kShard, DType::kF32, owns_master(p)});
  if (p.master_kind == MasterKind::kRemainder)
    out.push_back({param, StateKind::kRemainder, StateLocation::kShard, DType::kBF16});
  if (normuon_neurons(settings, param) > 0)
    out.push_back({param, StateKind::kNormuon, StateLocation::kOwnedNeurons, DType::kF32});
  return out;
}

State::State(Device& device, const OptimizerSettings& settings, const Plan& plan,
             const std::vector<RankChunk>& chunks, int rank)
    : first_{0} {
  for (size_t p = 0; p < settings.params.size(); ++p) {
    for (StateEntry& entry : state_of(settings, static_cast<int32_t>(p))) {
      if (entry.location == StateLocation::kShard)
        entry.numel = settings.params[p].layout.local_numel(rank);
      entries_.push_back(std::move(entry));
    }
    first_.push_back(entries_.size());
  }
  entries_.shrink_to_fit();
  add_ranges(entries_, first_, plan, chunks);
  int64_t total = 0;
  for (const StateEntry& entry : entries_) total = checked_add(total, bytes_of(entry));
  memory_ = Buffer(device, total);
  normuon_ = NormuonMemory(device, settings, plan, rank);
  char* at = memory_.as<char>();
  for (const bool local : {true, false}) {  // owner state comes after the state of shards
    for (StateEntry& entry : entries_) {
      if ((entry.location == StateLocation::kShard) != local ||
          entry.location == StateLocation::kOwnedNeurons)
        continue;
      if (!entry.ours) entry.data = settings.params[static_cast<size_t>(entry.param)].master;
      if (entry.ours && entry.numel > 0) entry.data = at;
      at += bytes_of(entry);
    }
  }
  for (StateEntry& entry : entries_) {
    if (entry.location != StateLocation::kOwnedNeurons) continue;
    entry.data = normuon_.moments(entry.param);
    entry.numel = entry.data ? normuon_.neurons(entry.param) : 0;
    entry.blocks = normuon_.ranges(plan, entry.param);
  }
}

void State::initialize(Device& device, const OptimizerSettings& settings) {
  std::vector<int64_t> all(settings.params.size());
  std::iota(all.begin(), all.end(), 0);
  set_masters(device, settings, all, true);
}

void State::reset_masters(Device& device, const OptimizerSettings& settings,
                          const std::vector<int64_t>& params) {
  set_masters(device, settings, params, false);
}

void State::set_masters(Device& device, const OptimizerSettings& settings,
                        const std::vector<int64_t>& params, bool clears) {
  if (!memory_.data()) return;
  // Nothing reads these findings, because non-finite weights are not an error here.
  const Buffer findings(device, sizeof(Findings));
  std::vector<OwnedMatrix> owned;
  std::vector<MatrixBatch> sources;
  std::vector<MatrixBlock> blocks;
  for (const int64_t param : params) {
    const StateEntry* const entry = find(param, StateKind::kMaster);
    if (!entry || !entry->ours || entry->numel == 0) continue;
    const ParamSettings& p = settings.params[static_cast<size_t>(param)];
    const int64_t numel = entry->numel;
    const auto index = static_cast<int32_t>(owned.size());
    owned.push_back({index, 1, numel});
    sources.push_back({p.data, p.dtype, 1, numel, numel, 1, numel});
    blocks.push_back(
        {index, 1, numel, 0, 0, static_cast<float*>(entry->data) - memory_.as<float>()});
  }
  LocalStream local(device);
  if (!owned.empty()) local.join_callers("master weights", settings.timeout_ms);
  local.run([&](Stream& stream) {
    Ops& ops = device.ops();
    if (clears) ops.fill(stream, memory_.data(), 0, memory_.bytes());
    for (const int64_t param : params) {
      const StateEntry* const entry = find(param, StateKind::kRemainder);
      if (entry && entry->data)
        ops.fill(stream, entry->data, 0, entry->numel * size_of(entry->dtype));
    }
    ops.fill(stream, findings.data(), 0, findings.bytes());
    ops.pack(stream, blocks, owned, sources.data(), {.data = memory_.data(), .dtype = DType::kF32},
             findings.as<Findings>());
  });
}

const StateEntry* State::find(int64_t param, StateKind kind) const {
  const auto p = static_cast<size_t>(param);
  for (size_t i = first_[p]; i < first_[p + 1]; ++i) {
    if (entries_[i].kind == kind) return &entries_[i];
  }
  return nullptr;
}

const StateEntry& State::at(int64_t param, StateKind kind, const std::string& name) const {
  if (const StateEntry* entry = find(param, kind)) return *entry;
  throw_absent(kind, name);
}

}  // namespace muonrt
