#include "command/verify/sharded.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "reference/reference.hpp"

namespace muonrt::tool {

namespace {

// guard elements before and after a shard, whose bytes are NaN in every dtype
constexpr int64_t kRedZone = 24;
constexpr unsigned char kRedZoneByte = 0xff;

int64_t bytes_of(int32_t dtype) { return dtype == MUONRT_DTYPE_F32 ? 4 : 2; }

/// Returns the bits of `value` as bf16, rounded to nearest, ties to even.
uint16_t half_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_half(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

void store(unsigned char* at, int32_t dtype, float value) {
  const uint16_t half = half_of(value);
  dtype == MUONRT_DTYPE_F32 ? std::memcpy(at, &value, 4) : std::memcpy(at, &half, 2);
}

/// Returns the number of guard bytes before a shard. Unless `aligned` is set, this number varies,
/// so that a shard is aligned only to the size of its elements.
int64_t red_zone_of(size_t tensor, int32_t dtype, bool aligned) {
  return aligned ? 256 : (kRedZone - static_cast<int64_t>(tensor % 4)) * bytes_of(dtype);
}

std::vector<unsigned char> red_zoned(int64_t elements, int32_t dtype, int64_t before) {
  return std::vector<unsigned char>(
      static_cast<size_t>(before + (elements + kRedZone) * bytes_of(dtype)), kRedZoneByte);
}

/// Returns partial gradient `index` of `count`. The sum of the partial gradients in this order is
/// exactly `value`. If `value` is exact in bf16, so is each of them. The partial gradients are a
/// coarse part, pairs that cancel, and the rest.
float partial_grad_of(float value, int64_t index, int64_t count) {
  if (count <= 1) return value;
  const float coarse = std::nearbyint(value * 8.0f) / 8.0f;
  if (index == 0) return coarse;
  if (index == count - 1) return value - coarse;
  const bool paired = (index - 1) / 2 * 2 + 2 <= count - 2;
  return paired ? (index % 2 == 1 ? 0.5f : -0.5f) : 0.0f;
}

}  // namespace

float element_value(uint64_t seed, int64_t element, int64_t step) {
  return static_cast<float>(reference::value_at(seed, 0, element, step));
}

Sharded::Sharded(Comm& comm, const std::vector<ModelTensor>& tensors,
                 const std::vector<TensorLayout>& layouts, const RunSettings& settings)
    : settings_(settings),
      rank_(comm.rank()),
      memory_(settings.where.cuda(), comm.rank()),
      shards_(tensors.size()) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    make_shard(i, tensors[i], layouts.empty() ? nullptr : &layouts[i]);
  }
  make_optimizer(comm, tensors, layouts);
}

void Sharded::fetch() {
  if (memory_.on_host()) return;
  for (Shard& s : shards_) s.data = memory_.read(s.far_data, std::ssize(s.data));
}

void Sharded::make_shard(size_t index, const ModelTensor& tensor, const TensorLayout* layout) {
  Shard& shard = shards_[index];
  shard.seed = tensor.seed();
  shard.muon = tensor.muon;
  shard.stretches =
      layout ? layout->stretches(rank_) : std::vector<Stretch>{{0, 0, tensor.elements()}};
  for (const Stretch& s : shard.stretches) shard.elements += s.count;
  if (layout) {
    shard.partial = layout->partial();
    shard.partial_grads = layout->partial_grads();
    shard.partial_grad = layout->partial_grad(rank_);
  }
  const Numerics& n = settings_.numerics;
  shard.data_at = red_zone_of(index, n.data, settings_.aligned);
  shard.grad_at = red_zone_of(index + 1, n.grad, settings_.aligned);
  shard.data = red_zoned(shard.elements, n.data, shard.data_at);
  shard.grad = red_zoned(shard.elements, n.grad, shard.grad_at);
  visit(index, [&](int64_t element, int64_t local) {
    store(shard.data.data() + shard.data_at + local * bytes_of(n.data), n.data,
          element_value(shard.seed, element, -1));
  });
  shard.far_data = shard.data.data();
  shard.far_grad = shard.grad.data();
  if (memory_.on_host()) return;
  shard.far_data = memory_.allocate_far(std::ssize(shard.data));
  shard.far_grad = memory_.allocate_far(std::ssize(shard.grad));
  memory_.write(shard.far_data, shard.data);
  memory_.write(shard.far_grad, shard.grad);
}

void Sharded::make_optimizer(Comm& comm, const std::vector<ModelTensor>& tensors,
                             const std::vector<TensorLayout>& layouts) {
  std::vector<muonrt_param_t> params(tensors.size());
  std::vector<std::vector<std::vector<muonrt_run_t>>> rows(tensors.size());
  std::vector<std::vector<muonrt_part_t>> parts(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ModelTensor& t = tensors[i];
    for (const RowBlock& block : t.parts) {
      auto& runs = rows[i].emplace_back();
      for (const auto& [begin, end] : block.rows) runs.push_back({begin, end});
    }
    for (size_t k = 0; k < t.parts.size(); ++k) {
      muonrt_part_t& part = parts[i].emplace_back();
      muonrt_part_init(&part);
      part.name = t.parts[k].name.c_str();
      part.rows = rows[i][k].data();
      part.n_rows = static_cast<int64_t>(rows[i][k].size());
    }
    muonrt_param_t& p = params[i] = param();
    p.name = t.name.c_str();
    p.group = t.muon ? 0 : 1;
    p.ndim = static_cast<int32_t>(t.shape.size());
    p.shape = t.shape.data();
    p.dtype = settings_.numerics.data;
    p.grad_dtype = settings_.numerics.grad;
    p.layout = layouts.empty() ? nullptr : layouts[i].c();
    p.data = shards_[i].far_data + shards_[i].data_at;
    p.grad = shards_[i].far_grad + shards_[i].grad_at;
    p.view = t.stack()                      ? MUONRT_VIEW_STACK
             : t.muon && t.shape.size() > 3 ? MUONRT_VIEW_FLATTEN
                                            : MUONRT_VIEW_NONE;
    p.parts = parts[i].data();
    p.n_parts = static_cast<int64_t>(parts[i].size());
  }
  OptimizerOptions o;
  o.general.threads = settings_.threads;
  o.tuning.transport_dtype = settings_.numerics.transport;
  o.tuning.iteration_dtype = settings_.numerics.iteration;
  o.tuning.window = settings_.window;
  o.tuning.chunk_bytes = settings_.chunk_bytes;
  o.tuning.commit = settings_.commit;
  o.tuning.replica_mode = settings_.replica_mode;
  o.debug.poison = settings_.poison;
  o.debug.trace = settings_.trace;
  set_device(o, settings_.where, rank_);
  optimizer_ = std::make_unique<Optimizer>(
      comm, o.linked(), std::vector<muonrt_group_t>{muon_group(), adamw_group()}, params);
}

void Sharded::fill_gradients(int64_t step) {
  const int32_t dtype = settings_.numerics.grad;
  for (size_t i = 0; i < shards_.size(); ++i) {
    unsigned char* grad = shards_[i].grad.data() + shards_[i].grad_at;
    visit(i, [&](int64_t element, int64_t local) {
      float value = element_value(shards_[i].seed, element, step);
      if (dtype == MUONRT_DTYPE_BF16) value = from_half(half_of(value));
      store(grad + local * bytes_of(dtype), dtype,
            partial_grad_of(value, shards_[i].partial_grad, shards_[i].partial_grads));
    });
    if (!memory_.on_host()) memory_.write(shards_[i].far_grad, shards_[i].grad);
  }
}

muonrt_step_report_t Sharded::step_only(double lr) {
  const muonrt_step_report_t report = optimizer_->step(lr);
  if (report.skipped) {
    throw std::runtime_error(
        "a step was skipped although every gradient is finite, so it read memory that was never "
        "written");
  }
  return report;
}

muonrt_step_report_t Sharded::step(int64_t step, double lr) {
  fill_gradients(step);
  const muonrt_step_report_t report = step_only(lr);
  fetch();
  return report;
}

float Sharded::data_at(size_t tensor, int64_t local) const {
  const Shard& shard = shards_[tensor];
  const int32_t dtype = settings_.numerics.data;
  const unsigned char* at = shard.data.data() + shard.data_at + local * bytes_of(dtype);
  if (dtype == MUONRT_DTYPE_F32) {
    float out;
    std::memcpy(&out, at, 4);
    return out;
  }
  uint16_t half;
  std::memcpy(&half, at, 2);
  return from_half(half);
}

std::vector<float> Sharded::state(size_t tensor, int32_t kind) {
  const Shard& shard = shards_[tensor];
  const bool master = kind == MUONRT_STATE_MASTER;
  if (master ? settings_.numerics.data != MUONRT_DTYPE_BF16
             : kind == MUONRT_STATE_VARIANCE && shard.muon) {
    return {};
  }
  // If gradients are partial, the owners store the moments, but each rank stores its master
  // weights.
  if (!master && shard.partial) return {};
  std::vector<float> out(static_cast<size_t>(shard.elements), NAN);
  for (const muonrt_state_shard_t& s : optimizer_->state_shards()) {
    if (s.param != static_cast<int64_t>(tensor) || s.kind != kind) continue;
    if (s.end - s.begin != shard.elements)
      throw std::runtime_error("a state shard has another size than the shard of its parameter");
    const std::vector<unsigned char> bytes = memory_.read(s.data, shard.elements * 4);
    std::memcpy(out.data(), bytes.data(), bytes.size());
  }
  return out;
}

WholeTensor Sharded::whole(size_t tensor) {
  const Shard& shard = shards_[tensor];
  const unsigned char* data = shard.data.data() + shard.data_at;
  return {{data, data + shard.elements * bytes_of(settings_.numerics.data)},
          state(tensor, MUONRT_STATE_MOMENTUM),
          state(tensor, MUONRT_STATE_VARIANCE),
          state(tensor, MUONRT_STATE_MASTER)};
}

int64_t Sharded::wrong_bits(size_t tensor, const WholeTensor& expected) {
  const Shard& shard = shards_[tensor];
  const int64_t size = bytes_of(settings_.numerics.data);
  const unsigned char* data = shard.data.data() + shard.data_at;
  const WholeTensor mine = whole(tensor);
  const auto differs = [](const std::vector<float>& state, int64_t local,
                          const std::vector<float>& whole, int64_t element) {
    return !state.empty() && std::memcmp(state.data() + local, whole.data() + element, 4) != 0;
  };
  int64_t wrong = 0;
  visit(tensor, [&](int64_t element, int64_t local) {
    wrong += std::memcmp(data + local * size, expected.data.data() + element * size,
                         static_cast<size_t>(size)) != 0 ||
             differs(mine.momentum, local, expected.momentum, element) ||
             differs(mine.variance, local, expected.variance, element) ||
             differs(mine.master, local, expected.master, element);
  });
  for (int64_t i = 0; i < shard.data_at; ++i)
    wrong += shard.data[static_cast<size_t>(i)] != kRedZoneByte;
  for (size_t i = static_cast<size_t>(shard.data_at + shard.elements * size); i < shard.data.size();
       ++i) {
    wrong += shard.data[i] != kRedZoneByte;
  }
  return wrong;
}

bool Sharded::plant() {
  for (Shard& shard : shards_) {
    if (shard.elements == 0) continue;
    const int64_t size = bytes_of(settings_.numerics.data);
    shard.data[static_cast<size_t>(shard.data_at + size - 1)] ^= 0x40;
    return true;
  }
  return false;
}

}  // namespace muonrt::tool
