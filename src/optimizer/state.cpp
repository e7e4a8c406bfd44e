#include "optimizer/state.hpp"

#include <algorithm>
#include <numeric>

#include "backend/ops.hpp"
#include "base/checked.hpp"

namespace muonrt {

namespace {

/// The parts of sums that this rank keeps: matrices by number, slices by place.
void add_pieces(std::vector<StatePart>& parts, const std::vector<size_t>& first, const Plan& plan,
                const std::vector<SlotPlan>& slots) {
  for (const SlotPlan& slot : slots) {
    for (const Kept& kept : slot.kept) {
      const auto p = static_cast<size_t>(kept.param);
      for (size_t i = first[p]; i < first[p + 1]; ++i) {
        StatePart& part = parts[i];
        if (part.place == StatePlace::kSlices) part.pieces.push_back({-1, kept.first, kept.numel});
        if (part.place == StatePlace::kMatrices)
          part.pieces.push_back(
              {plan.matrices()[static_cast<size_t>(kept.first)].index, 0, kept.numel});
      }
    }
  }
  for (StatePart& part : parts) {
    std::sort(part.pieces.begin(), part.pieces.end(), [](const StatePiece& a, const StatePiece& b) {
      return std::pair(a.index, a.begin) < std::pair(b.index, b.begin);
    });
    for (const StatePiece& piece : part.pieces) part.numel += piece.numel;
  }
}

/// What is taken for it in the one buffer; the caller's masters and NorMuon's moments are not
/// there.
int64_t bytes_of(const StatePart& part) {
  if (!part.ours || part.place == StatePlace::kLines) return 0;
  return padded_bytes(part.numel, size_of(part.dtype));
}

[[noreturn]] void throw_absent(StateKind kind, const std::string& name) {
  const char* why = nullptr;
  switch (kind) {
    case StateKind::kMomentum:
      break;
    case StateKind::kVariance:
      why = "' has no variance (it is a Muon parameter); ask for its momentum";
      break;
    case StateKind::kMaster:
      why = "' has no master weights (master_kind); read the parameter itself";
      break;
    case StateKind::kRemainder:
      why =
          "' has no remainder (master_kind is not MUONRT_MASTER_REMAINDER); read the parameter "
          "itself";
      break;
    case StateKind::kNormuon:
      why =
          "' has no NorMuon moments (its group has NorMuon off, or it has one line); ask for its "
          "momentum";
      break;
  }
  if (why) throw Error(Status::kInvalidState, cat("param '", name, why));
  throw Error(Status::kInvalidArgument,
              cat("state kind is ", static_cast<int32_t>(kind),
                  " (0 momentum, 1 variance, 2 master, 3 remainder, 4 NorMuon); use one of them"));
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

StateView view_of(const StatePart& part) {
  const bool words = part.kind == StateKind::kRemainder;
  return {part.data, part.numel, words ? 0 : static_cast<int32_t>(part.dtype), part.place};
}

std::vector<StatePart> state_of(const OptimizerSettings& settings, int32_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  const GroupSettings& group = settings.groups[static_cast<size_t>(p.group)];
  const bool adamw = group.role == Role::kAdamW;
  const bool sums = p.grad_layout || !p.layout.partial_dims().empty();
  const StatePlace place = !sums   ? StatePlace::kLocal
                           : adamw ? StatePlace::kSlices
                                   : StatePlace::kMatrices;
  std::vector<StatePart> out = {{param, StateKind::kMomentum, place, group.momentum_dtype}};
  if (adamw) out.push_back({param, StateKind::kVariance, place, DType::kF32});
  if (owns_master(p) || p.master_kind == MasterKind::kCaller)
    out.push_back({param, StateKind::kMaster, StatePlace::kLocal, DType::kF32, owns_master(p)});
  if (p.master_kind == MasterKind::kRemainder)
    out.push_back({param, StateKind::kRemainder, StatePlace::kLocal, DType::kBF16});
  if (normuon_lines(settings, param) > 0)
    out.push_back({param, StateKind::kNormuon, StatePlace::kLines, DType::kF32});
  return out;
}

State::State(Device& device, const OptimizerSettings& settings, const Plan& plan,
             const std::vector<SlotPlan>& slots, int rank)
    : first_{0} {
  for (size_t p = 0; p < settings.params.size(); ++p) {
    for (StatePart& part : state_of(settings, static_cast<int32_t>(p))) {
      if (part.place == StatePlace::kLocal)
        part.numel = settings.params[p].layout.local_numel(rank);
      parts_.push_back(std::move(part));
    }
    first_.push_back(parts_.size());
  }
  add_pieces(parts_, first_, plan, slots);
  int64_t total = 0;
  for (const StatePart& part : parts_) total = checked_add(total, bytes_of(part));
  memory_ = Buffer(device, total);
  normuon_ = NormuonMemory(device, settings, plan, rank);
  char* at = memory_.as<char>();
  for (const bool local : {true, false}) {  // what lies with owners follows all that is local
    for (StatePart& part : parts_) {
      if ((part.place == StatePlace::kLocal) != local || part.place == StatePlace::kLines) continue;
      if (!part.ours) part.data = settings.params[static_cast<size_t>(part.param)].master;
      if (part.ours && part.numel > 0) part.data = at;
      at += bytes_of(part);
    }
  }
  for (StatePart& part : parts_) {
    if (part.place != StatePlace::kLines) continue;
    part.data = normuon_.moments(part.param);
    part.numel = part.data ? normuon_.lines(part.param) : 0;
    part.pieces = normuon_.pieces(plan, part.param);
  }
}

void State::start(Device& device, const OptimizerSettings& settings) {
  std::vector<int64_t> all(settings.params.size());
  std::iota(all.begin(), all.end(), 0);
  take(device, settings, all, true);
}

void State::take_params(Device& device, const OptimizerSettings& settings,
                        const std::vector<int64_t>& list) {
  take(device, settings, list, false);
}

/// @param clears  all other state, too.
void State::take(Device& device, const OptimizerSettings& settings,
                 const std::vector<int64_t>& list, bool clears) {
  if (!memory_.data()) return;
  const auto stream = device.create_stream(StreamKind::kCompute);
  const auto done = device.create_event();
  const Buffer findings(device, sizeof(Findings));  // a non-finite weight is no error here
  std::vector<Owned> owned;
  std::vector<MatrixBatch> sources;
  std::vector<Placed> placed;
  for (const int64_t param : list) {
    const StatePart* const part = find(param, StateKind::kMaster);
    if (!part || !part->ours || part->numel == 0) continue;
    const ParamSettings& p = settings.params[static_cast<size_t>(param)];
    const int64_t numel = part->numel;
    const auto index = static_cast<int32_t>(owned.size());
    owned.push_back({index, 1, numel});
    sources.push_back({p.data, p.dtype, 1, numel, numel, 1, numel});
    placed.push_back({index, 1, numel, 0, 0, static_cast<float*>(part->data) - memory_.as<float>()});
  }
  if (!owned.empty()) device.join(*stream, nullptr, "master weights");
  Ops& ops = device.ops();
  if (clears) ops.fill(*stream, memory_.data(), 0, memory_.bytes());
  for (const int64_t param : list) {
    const StatePart* const part = find(param, StateKind::kRemainder);
    if (part && part->data) ops.fill(*stream, part->data, 0, part->numel * size_of(part->dtype));
  }
  ops.fill(*stream, findings.data(), 0, findings.bytes());
  ops.pack(*stream, placed, owned, sources.data(), {.data = memory_.data(), .dtype = DType::kF32},
           findings.as<Findings>());
  device.record(*done, *stream);
  device.synchronize(*done, Deadline::in_ms(settings.timeout_ms));
  if (const auto error = device.error()) throw *error;
}

const StatePart* State::find(int64_t param, StateKind kind) const {
  const auto p = static_cast<size_t>(param);
  for (size_t i = first_[p]; i < first_[p + 1]; ++i) {
    if (parts_[i].kind == kind) return &parts_[i];
  }
  return nullptr;
}

const StatePart& State::at(int64_t param, StateKind kind, const std::string& name) const {
  if (const StatePart* part = find(param, kind)) return *part;
  throw_absent(kind, name);
}

}  // namespace muonrt
