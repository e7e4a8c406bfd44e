#include "pipeline/health.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "algo/spectrum.hpp"
#include "backend/local_stream.hpp"
#include "base/checked.hpp"

namespace muonrt {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The values of a matrix in the sum over the ranks. Every rank contributes to the first ones: the
// sum of the squares of its weights as kTallyLimbs numbers (see Tally), the number of non-finite
// weights, and the number of non-finite gradient elements. Only the owner sets the remaining
// values; the other ranks add zeros.
enum : int64_t {
  kBadWeights = kTallyLimbs,
  kNonfinite,
  kUpdateRms,
  kSigmaMin,
  kSigmaMax,
  kLargestQ,
  kRowWords
};

double update_scale(const ParamSpec& spec, int64_t index) {
  if (spec.parts.empty()) return spec.update_scale;
  return spec.parts[static_cast<size_t>(index % parts_of(spec))].update_scale;
}

double root_mean_square(const int64_t* limbs, double numel) {
  return std::sqrt(sum_of_squares(limbs) / numel);
}

}  // namespace

Health::Health(const PipelineContext& context, int rank, const std::vector<RankChunk>& chunks)
    : context_(&context), rank_(rank), done_(context.device->create_event()) {
  number_matrices();
  const auto& params = context.plan->problem().params;
  owned_index_.assign(context.plan->matrices().size(), -1);
  for (const RankChunk& chunk : chunks) {
    for (const OwnedMatrix& owned : chunk.owned)
      owned_index_[static_cast<size_t>(owned.matrix)] = static_cast<int32_t>(owned_++);
    if (chunk.kind == ChunkKind::kSlices) continue;
    for (const ShardBlock& p : chunk.return_blocks) {
      if (params[static_cast<size_t>(p.param)].layout.full_replica_index(rank) != 0) continue;
      blocks_.push_back({p.param, row_of_[static_cast<size_t>(p.matrix)], p.rows, p.cols,
                         p.local_offset, p.local_ld});
    }
    // If the layout of a gradient differs from its parameter's layout, the gathered blocks belong
    // to the gradient. Each block is counted for only one owner.
    for (const ShardBlock& p : chunk.gather_blocks) {
      const int32_t row = row_of_[static_cast<size_t>(p.matrix)];
      if (!params[static_cast<size_t>(p.param)].grad_layout) continue;
      if (representative_[static_cast<size_t>(row)] == p.matrix)
        grad_blocks_.push_back({p.param, row, p.rows, p.cols, p.local_offset, p.local_ld});
    }
  }
  allocate_memory();
}

// If every replica orthogonalizes its own copy of a matrix, the first copy represents all of them.
void Health::number_matrices() {
  const auto& matrices = context_->plan->matrices();
  std::map<std::pair<int32_t, int64_t>, int32_t> known;
  for (size_t id = 0; id < matrices.size(); ++id) {
    const Matrix& m = matrices[id];
    const auto [at, is_new] =
        known.emplace(std::pair(m.param, m.index), static_cast<int32_t>(rows_.size()));
    row_of_.push_back(at->second);
    if (!is_new) continue;
    representative_.push_back(static_cast<int32_t>(id));
    MatrixHealth row;
    row.param = m.param;
    row.index = m.index;
    row.rows = m.rows;
    row.cols = m.cols;
    rows_.push_back(row);
  }
}

void Health::allocate_memory() {
  Device& device = *context_->device;
  const auto params = static_cast<int64_t>(context_->plan->problem().params.size());
  const int64_t rows = std::ssize(rows_);
  int64_t bytes = 0;
  const auto take = [&](int64_t count, size_t size) {
    const int64_t at = bytes;
    bytes = checked_add(bytes, padded_bytes(count, static_cast<int64_t>(size)));
    return at;
  };
  const int64_t lanczos = take(owned_, sizeof(Lanczos)), updates = take(owned_, sizeof(Tally)),
                q = take(owned_, sizeof(Tally)), weights = take(rows, sizeof(Tally)),
                gradients = take(rows, sizeof(Tally));
  memory_ = Buffer(device, bytes);
  host_copy_ = Buffer::shared(device, bytes);
  char* const at = memory_.as<char>();
  lanczos_ = reinterpret_cast<Lanczos*>(at + lanczos);
  updates_ = reinterpret_cast<Tally*>(at + updates);
  q_ = reinterpret_cast<Tally*>(at + q);
  weights_ = reinterpret_cast<Tally*>(at + weights);
  gradients_ = reinterpret_cast<Tally*>(at + gradients);
  replicas_ = ReplicaHashes(device, context_->plan->problem().params, rank_,
                            static_cast<int>(context_->world()));
  words_ = checked_add(checked_mul(rows, kRowWords), params);
  own_sum_ = Buffer(device, words_ * 8);
  total_ = Buffer(device, words_ * 8);
  host_words_ = Buffer::shared(device, words_ * 8);
  context_->comm->prepare_reduction(words_ * 8);
}

Health::BatchStatistics Health::batch_statistics_of(int32_t matrix) const {
  const int32_t at = owned_index_[static_cast<size_t>(matrix)];
  return {lanczos_ + at, updates_ + at, q_ + at};
}

void Health::begin(bool collects) {
  collects_ = collects;
  if (!collects) return;
  if (memory_.bytes() > 0)
    context_->ops().fill(*context_->compute, memory_.data(), 0, memory_.bytes());
}

void Health::synchronize(Stream& stream) {
  const PipelineContext& c = *context_;
  drain(*c.device, stream, *done_);
  if (const auto error = c.comm->error()) throw *error;
}

void Health::finish(const ParamView* views, bool updated) {
  const PipelineContext& c = *context_;
  collect_local(views);
  hash_replicas(views);
  if (memory_.bytes() > 0)
    c.ops().copy(*c.compute, host_copy_.data(), memory_.data(), memory_.bytes());
  synchronize(*c.compute);
  fill_words(views, updated);
  reduce();
  read_words(views, updated);
}

void Health::collect_local(const ParamView* views) {
  Ops& ops = context_->ops();
  Stream& s = *context_->compute;
  const auto part_of = [](const LocalBlock& p, const void* memory, DType dtype) {
    auto* const at = static_cast<char*>(const_cast<void*>(memory)) + p.offset * size_of(dtype);
    return MatrixBatch{at, dtype, p.rows, p.cols, p.ld, 1, 0};
  };
  const auto add_gradient = [&](const LocalBlock& p) {
    const ParamView& v = views[p.param];
    if (v.active && v.grad)
      ops.tally(s, part_of(p, v.grad, v.grad_dtype), nullptr, gradients_ + p.row);
  };
  for (const LocalBlock& p : grad_blocks_) add_gradient(p);
  for (const LocalBlock& p : blocks_) {
    const ParamView& v = views[p.param];
    const auto part = [&](const void* memory, DType dtype) { return part_of(p, memory, dtype); };
    // Every partial gradient is counted. Of multiple replicas of the weights, only the first one is
    // counted.
    const Layout& layout = context_->plan->problem().params[static_cast<size_t>(p.param)].layout;
    if (layout.replica_index(rank_) == 0) {
      if (v.form == WeightForm::kMaster) {
        ops.tally(s, part(v.master, DType::kF32), nullptr, weights_ + p.row);
      } else {
        const bool split = v.form == WeightForm::kRemainder;
        ops.tally(s, part(v.param, v.param_dtype), split ? v.remainder + p.offset : nullptr,
                  weights_ + p.row);
      }
    }
    if (v.grad_numel < 0) add_gradient(p);
  }
}

void Health::hash_replicas(const ParamView* views) {
  const auto params = static_cast<int64_t>(context_->plan->problem().params.size());
  replicas_.clear(*context_->compute);
  for (int64_t i = 0; i < params; ++i) replicas_.add_weights(*context_->compute, views[i], i);
  replicas_.finish(*context_->compute);
}

/// Returns the address, in the host's copy, of a field of `memory`.
template <class T>
static const T* in_copy(const Buffer& copy, const Buffer& memory, const T* field) {
  return reinterpret_cast<const T*>(copy.as<char>() +
                                    (reinterpret_cast<const char*>(field) - memory.as<char>()));
}

void Health::fill_words(const ParamView* views, bool updated) {
  const auto* const weights = in_copy(host_copy_, memory_, weights_);
  const auto* const gradients = in_copy(host_copy_, memory_, gradients_);
  const auto* const lanczos = in_copy(host_copy_, memory_, lanczos_);
  const auto* const updates = in_copy(host_copy_, memory_, updates_);
  const auto* const q = in_copy(host_copy_, memory_, q_);
  auto* const words = host_words_.as<int64_t>();
  std::memset(words, 0, static_cast<size_t>(words_) * 8);
  const auto& plan = *context_->plan;
  for (size_t i = 0; i < rows_.size(); ++i) {
    int64_t* const row = words + static_cast<int64_t>(i) * kRowWords;
    std::memcpy(row, weights[i].limbs, sizeof weights[i].limbs);
    row[kBadWeights] = weights[i].nonfinite;
    row[kNonfinite] = gradients[i].nonfinite;
    const int32_t owned = owned_index_[static_cast<size_t>(representative_[i])];
    if (owned < 0 || !updated || !views[rows_[i].param].active) continue;
    const Matrix& m = plan.matrices()[static_cast<size_t>(representative_[i])];
    const ParamSpec& spec = plan.problem().params[static_cast<size_t>(m.param)];
    const double numel = static_cast<double>(m.rows) * static_cast<double>(m.cols);
    const Spectrum spectrum = spectrum_of(lanczos[owned], std::min(m.rows, m.cols));
    const float largest = std::bit_cast<float>(static_cast<uint32_t>(q[owned].largest));
    const auto put = [&](int64_t word, double value) { row[word] = std::bit_cast<int64_t>(value); };
    put(kUpdateRms,
        std::fabs(update_scale(spec, m.index)) * root_mean_square(updates[owned].limbs, numel));
    put(kSigmaMin, spectrum.smallest);
    put(kSigmaMax, spectrum.largest);
    // The largest element of Q is never zero, so zero means that no Q was computed.
    put(kLargestQ, largest == 0.0f ? kNan : static_cast<double>(largest));
  }
  int64_t* const sums = words + std::ssize(rows_) * kRowWords;
  const auto params = static_cast<int64_t>(plan.problem().params.size());
  for (int64_t i = 0; i < params; ++i) sums[i] = replicas_.weight_word(i);
}

void Health::reduce() {
  const PipelineContext& c = *context_;
  Stream& s = *c.exchange;
  c.ops().copy(s, own_sum_.data(), host_words_.data(), words_ * 8);
  c.comm->reduce_sum(s, own_sum_.as<int64_t>(), total_.as<int64_t>(), words_);
  c.ops().copy(s, host_words_.data(), total_.data(), words_ * 8);
  synchronize(s);
}

void Health::read_words(const ParamView* views, bool updated) {
  const auto* const words = host_words_.as<int64_t>();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int64_t* const row = words + static_cast<int64_t>(i) * kRowWords;
    MatrixHealth& out = rows_[i];
    const auto get = [&](int64_t word) {
      return out.updated ? std::bit_cast<double>(row[word]) : kNan;
    };
    out.updated = updated && views[out.param].active;
    const double numel = static_cast<double>(out.rows) * static_cast<double>(out.cols);
    out.weight_rms = row[kBadWeights] == 0 ? root_mean_square(row, numel) : kNan;
    out.nonfinite = row[kNonfinite];
    out.update_rms = get(kUpdateRms);
    out.sigma_min = get(kSigmaMin);
    out.sigma_max = get(kSigmaMax);
    out.deviation = out.updated ? Spectrum{out.sigma_min, out.sigma_max}.deviation() : kNan;
    out.largest_q = get(kLargestQ);
  }
  difference_ = {};
  const int64_t* const sums = words + std::ssize(rows_) * kRowWords;
  const auto params = static_cast<int64_t>(context_->plan->problem().params.size());
  for (int64_t i = 0; i < params && difference_.param < 0; ++i) {
    if (sums[i] != 0) difference_ = replicas_.find(*context_->comm, i);
  }
}

}  // namespace muonrt
