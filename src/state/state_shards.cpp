#include "state/state_shards.hpp"

#include <algorithm>
#include <map>

namespace muonrt {

namespace {

// If multiple ranks hold a shard, they divide it into parts. The size of each part except the last
// is a multiple of this number.
constexpr int64_t kShare = 1 << 18;

constexpr struct {
  int32_t kind;
  const char* word;
} kWords[] = {{StateTensor::kParam, "param"},
              {static_cast<int32_t>(StateKind::kMomentum), "momentum"},
              {static_cast<int32_t>(StateKind::kVariance), "variance"},
              {static_cast<int32_t>(StateKind::kMaster), "master"},
              {static_cast<int32_t>(StateKind::kRemainder), "remainder"},
              {static_cast<int32_t>(StateKind::kNormuon), "normuon"}};

const char* safetensors_name(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

StateTensor tensor_of(const OptimizerSettings& settings, const StateEntry& entry) {
  const ParamSettings& p = settings.params[static_cast<size_t>(entry.param)];
  const bool neurons = entry.location == StateLocation::kOwnedNeurons;
  return {entry.param,
          p.name,
          static_cast<int32_t>(entry.kind),
          entry.kind == StateKind::kRemainder ? "U16" : safetensors_name(entry.dtype),
          neurons ? normuon_neurons(settings, entry.param) : p.layout.numel(),
          entry.location};
}

/// Chooses which elements of a shard this rank writes. `count` ranks hold the shard, and this rank
/// is number `index` among them. A short shard is written by a single rank. The rank that writes
/// the first part differs between tensors.
void share(StateShard& shard, int64_t index, int64_t count) {
  const int64_t numel = shard.extent.numel();
  const int64_t each = round_up(ceil_div(numel, count), kShare);
  const int64_t turn = (index + shard.tensor.param * 5 + shard.tensor.kind + 1) % count;
  shard.write_begin = std::min(numel, turn * each);
  shard.write_end = std::min(numel, shard.write_begin + each);
}

/// The owners of each matrix: one owner, or one in every replica.
class MatrixOwners {
 public:
  explicit MatrixOwners(const Plan& plan) {
    if (!plan.each_replica()) return;
    for (const Matrix& m : plan.matrices()) owners_[{m.param, m.index}].push_back(m.owner);
  }
  void share_shard(StateShard& shard, int64_t index, int rank) const {
    const auto found = owners_.find({static_cast<int32_t>(shard.tensor.param), index});
    if (found == owners_.end()) return share(shard, 0, 1);
    const auto& list = found->second;
    share(shard, std::find(list.begin(), list.end(), rank) - list.begin(), std::ssize(list));
  }

 private:
  std::map<std::pair<int32_t, int64_t>, std::vector<int32_t>> owners_;
};

Extent matrix_extent(const ParamSpec& spec, int64_t index) {
  Extent out;
  out.shape = spec.layout.shape();
  const size_t dims = out.shape.size();
  out.runs = {whole(out.shape[dims - 2]), whole(out.shape[dims - 1])};
  if (!spec.parts.empty()) {
    const MatrixPart& part = spec.parts[static_cast<size_t>(index % parts_of(spec))];
    out.runs = {part.rows, part.cols};
  }
  const int64_t e = index / parts_of(spec);
  if (dims == 3) out.runs.insert(out.runs.begin(), Runs{{e, e + 1}});
  out.end = out.product();
  return out;
}

}  // namespace

const char* kind_name(int32_t kind) {
  for (const auto& row : kWords)
    if (row.kind == kind) return row.word;
  return "";
}

int32_t kind_from_name(std::string_view word) {
  for (const auto& row : kWords)
    if (row.word == word) return row.kind;
  return -2;
}

bool has_masters(const OptimizerSettings& settings, int64_t param) {
  const auto state = state_of(settings, static_cast<int32_t>(param));
  return std::any_of(state.begin(), state.end(),
                     [](const StateEntry& entry) { return entry.kind == StateKind::kMaster; });
}

StateTensor tensor_of_param(const OptimizerSettings& settings, int64_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  return {param, p.name, StateTensor::kParam, safetensors_name(p.dtype), p.layout.numel()};
}

int64_t bytes_of(const StateTensor& tensor) { return tensor.dtype == "F32" ? 4 : 2; }

bool is_moment(int32_t kind) {
  return kind == static_cast<int32_t>(StateKind::kMomentum) ||
         kind == static_cast<int32_t>(StateKind::kVariance) ||
         kind == static_cast<int32_t>(StateKind::kNormuon);
}

std::vector<StateTensor> state_tensors(const OptimizerSettings& settings) {
  std::vector<StateTensor> out;
  for (int32_t p = 0; p < std::ssize(settings.params); ++p) {
    if (settings.params[static_cast<size_t>(p)].layout.numel() == 0) continue;
    for (const StateEntry& entry : state_of(settings, p)) out.push_back(tensor_of(settings, entry));
  }
  return out;
}

std::vector<StateShard> local_state_shards(const Optimizer& optimizer, bool with_params) {
  const OptimizerSettings& settings = optimizer.settings();
  const int rank = optimizer.rank();
  const MatrixOwners owners(optimizer.plan());
  std::vector<StateShard> out;
  const auto add_local = [&](const StateTensor& tensor, void* data) {
    const Layout& layout = settings.params[static_cast<size_t>(tensor.param)].layout;
    StateShard shard{tensor, local_extent(layout, rank), data};
    if (shard.extent.numel() == 0) return;
    share(shard, layout.replica_index(rank), layout.replicas());
    out.push_back(std::move(shard));
  };
  int64_t last = -1;
  for (const StateEntry& entry : optimizer.state_entries()) {
    const StateTensor tensor = tensor_of(settings, entry);
    if (with_params && tensor.param != last)
      add_local(tensor_of_param(settings, tensor.param),
                settings.params[static_cast<size_t>(tensor.param)].data);
    last = tensor.param;
    if (entry.location == StateLocation::kShard) {
      add_local(tensor, entry.data);
      continue;
    }
    const ParamSpec& spec = optimizer.plan().problem().params[static_cast<size_t>(entry.param)];
    char* at = static_cast<char*>(entry.data);
    for (const StateRange& kept : entry.blocks) {
      StateShard shard{tensor, {}, at};
      if (entry.location == StateLocation::kOwnedMatrices) {
        shard.extent = matrix_extent(spec, kept.index);
      } else if (entry.location == StateLocation::kOwnedSlices) {
        shard.extent = local_extent(spec.layout, rank).part(kept.begin, kept.begin + kept.numel);
      } else {
        shard.extent = whole_extent(tensor.numel).part(kept.begin, kept.begin + kept.numel);
        shard.data = static_cast<char*>(entry.data) + kept.begin * bytes_of(tensor);
      }
      at += kept.numel * bytes_of(tensor);
      if (kept.numel == 0) continue;
      owners.share_shard(shard, entry.location == StateLocation::kOwnedSlices ? -1 : kept.index,
                         rank);
      out.push_back(std::move(shard));
    }
  }
  return out;
}

}  // namespace muonrt
