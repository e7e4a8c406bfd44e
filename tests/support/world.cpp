#include "support/world.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/text.hpp"
#include "comm/host_comm.hpp"
#include "host/host_device.hpp"
#include "layout/blocks.hpp"
#include "support/rank_check.hpp"

namespace world {

using namespace muonrt;

namespace {

void store(unsigned char* at, DType dtype, float x) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &x, 4);
  } else {
    const bf16 half = to_bf16(x);
    std::memcpy(at, &half, 2);
  }
}

}  // namespace

std::string Case::describe() const {
  const auto& s = settings;
  std::string out = cat(
      "world ", world, " mesh ", mesh, " ranks ", rank_array, " window ", s.window, " chunk ",
      s.chunk_bytes, s.commit == CommitMode::kAtomic ? " atomic" : " eager", " threads ", s.threads,
      " transport ", name_of(s.transport_dtype), " iteration ", name_of(s.iteration_dtype));
  for (const Param& p : params) out += cat("; ", p.name, p.shape, " ", to_text(p.placements));
  return out;
}

float value(int64_t param, int64_t element, int64_t step) {
  uint64_t x = static_cast<uint64_t>(param) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(element) +
               static_cast<uint64_t>(step + 1) * 0xd1b54a32d192ed03u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int32_t>(x >> 40) - (1 << 23)) /
         static_cast<float>(1 << 23);
}

float partial_grad_value(int64_t param, int64_t element, int64_t step, int64_t partial_grad,
                         DType dtype) {
  // The terms have different magnitudes and use all bits of f32, so the order in which they are
  // added affects the result.
  const float x = 0.3f * static_cast<float>(partial_grad % 3 + 1) *
                  value(param + 7919 * (partial_grad + 1), element, step);
  return dtype == DType::kF32 ? x : to_f32(to_bf16(x));
}

std::unique_ptr<Device> host_device(const OptimizerSettings& settings) {
  return host::make_host_device({std::max(settings.threads, 1), settings.portable_gemm});
}

std::vector<GroupSettings> default_groups() {
  return {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kAdamW)};
}

Case on_mesh(std::vector<int64_t> mesh, std::vector<int32_t> rank_array) {
  Case c;
  c.world = 1;
  for (const int64_t n : mesh) c.world *= static_cast<int>(n);
  c.mesh = std::move(mesh);
  c.rank_array = std::move(rank_array);
  return c;
}

Layout layout_of(const Param& p, const std::shared_ptr<const Mesh>& mesh) {
  std::vector<Placement> placements = p.placements;
  placements.resize(static_cast<size_t>(mesh->dims()));
  return p.make_layout ? p.make_layout(mesh, p.shape)
                       : Layout::from_placements(mesh, p.shape, placements, p.reading);
}

Layout viewed(const Param& p, const Layout& layout) {
  if (p.row_dims > 0) return layout.viewed(p.batch_dims, p.row_dims);
  return p.view == View::kFlatten ? layout.as_matrix() : layout;
}

Layout grad_layout_of(const Param& p, const std::shared_ptr<const Mesh>& mesh) {
  if (p.make_grad_layout) return p.make_grad_layout(mesh, p.shape);
  if (p.grad_placements.empty()) return layout_of(p, mesh);
  return Layout::from_placements(mesh, p.shape, p.grad_placements, p.reading);
}

Rank::Rank(const Case& of, Comm& comm, const MakeDevice& make_device, Mirror* mirror)
    : case_(&of), rank_(comm.rank()), mirror_(mirror) {
  const auto mesh = std::make_shared<Mesh>(of.mesh, std::vector<std::string>{}, of.rank_array);
  for (const Param& p : of.params) {
    layouts_.push_back(viewed(p, layout_of(p, mesh)));
    grad_layouts_.push_back(viewed(p, grad_layout_of(p, mesh)));
  }
  make_buffers();
  if (mirror_) mirror_buffers();
  optimizer_ = Optimizer::create(
      comm,
      [&] {
        OptimizerSettings settings = of.settings;
        if (settings.groups.empty()) settings.groups = default_groups();
        for (size_t i = 0; i < of.params.size(); ++i) {
          const Param& p = of.params[i];
          ParamSettings param;
          param.name = p.name;
          param.group = p.role == Role::kMuon ? 0 : 1;
          param.dtype = p.dtype;
          param.grad_dtype = p.grad_dtype;
          param.layout = layouts_[i];
          if (p.make_grad_layout || !p.grad_placements.empty())
            take_grad_layout(param, grad_layouts_[i]);
          param.data = mirror_ ? far_data_[i] : data_[i].data();
          param.grad = mirror_ ? far_grads_[i] : grads_[i].data();
          param.owner = p.owner;
          param.master_kind = p.master_kind;
          param.lr_factor = p.lr_factor;
          param.priority = p.priority;
          param.normuon_axis = p.normuon_axis;
          param.qk_clip = p.qk_clip;
          param.view = p.view;
          param.transposed = p.transposed;
          param.parts = p.parts;
          settings.params.push_back(std::move(param));
        }
        if (of.adjust) of.adjust(settings, rank_);
        return settings;
      },
      make_device);
}

void for_each_element(const Layout& layout, int rank,
                      const std::function<void(int64_t, int64_t)>& visit) {
  const auto& shape = layout.shape();
  const int64_t width = shape.empty() ? 1 : shape.back();
  const auto visit_blocks = [&](const std::vector<Block>& blocks, int64_t first) {
    for (const Block& b : blocks) {
      for (int64_t r = 0; r < b.rows; ++r) {
        for (int64_t c = 0; c < b.cols; ++c) {
          visit(first + (b.row + r) * width + b.col + c, b.local_offset + r * b.local_ld + c);
        }
      }
    }
  };
  if (shape.size() < 3) return visit_blocks(blocks_of(layout, rank), 0);
  for (int64_t e = 0; e < shape[0]; ++e) {
    visit_blocks(blocks_of_matrix(layout, rank, e), e * shape[1] * width);
  }
}

void Rank::make_buffers() {
  for (size_t i = 0; i < case_->params.size(); ++i) {
    const Param& p = case_->params[i];
    const int64_t numel = layouts_[i].local_numel(rank_);
    data_.emplace_back(static_cast<size_t>(numel * size_of(p.dtype)));
    grads_.emplace_back(
        static_cast<size_t>(grad_layouts_[i].local_numel(rank_) * size_of(p.grad_dtype)));
    visit(static_cast<int64_t>(i), [&](int64_t element, int64_t local) {
      store(data_[i].data() + local * size_of(p.dtype), p.dtype,
            value(static_cast<int64_t>(i), element, -1));
    });
  }
}

float Rank::gradient(int64_t param, int64_t element, int64_t step) const {
  const Param& p = case_->params[static_cast<size_t>(param)];
  if (p.partial_grads == 0) return value(param, element, step);
  if (grad_layout(param).partial_count() > 1)
    return partial_grad_value(param, element, step, grad_layout(param).partial_index(rank_),
                              p.partial_grad_dtype);
  float sum = partial_grad_value(param, element, step, 0, p.partial_grad_dtype);
  for (int a = 1; a < p.partial_grads; ++a)
    sum += partial_grad_value(param, element, step, a, p.partial_grad_dtype);
  return sum;
}

// Copies the state that this rank holds as the owner of matrices, parts or slices.
void Rank::add_owner_state(int64_t param, Tensors& full) {
  const Plan& plan = optimizer_->plan();
  const Param& p = case_->params[static_cast<size_t>(param)];
  const bool adamw = p.role == Role::kAdamW;
  std::map<int64_t, int64_t> owner_state;  // number of elements of each range, by its first element
  for (const RankChunk& chunk : plan.rank_chunks(rank_)) {
    for (const OwnerState& k : chunk.owner_state) {
      if (k.param == param) owner_state[k.first] = k.numel;
    }
  }
  std::vector<int64_t> elements;
  if (adamw) {
    std::vector<int64_t> of_local(static_cast<size_t>(layout(param).local_numel(rank_)));
    visit(param, [&](int64_t e, int64_t local) { of_local[static_cast<size_t>(local)] = e; });
    for (const auto& [first, numel] : owner_state)
      elements.insert(elements.end(), of_local.begin() + first, of_local.begin() + first + numel);
  } else {
    const auto& shape = layout(param).shape();
    const int64_t rows = shape[shape.size() - 2], cols = shape.back();
    for (const auto& [id, numel] : owner_state) {
      const int64_t index = plan.matrices()[static_cast<size_t>(id)].index;
      const auto parts = static_cast<int64_t>(std::max<size_t>(1, p.parts.size()));
      const Runs all_rows = whole(rows), all_cols = whole(cols);
      const bool split = !p.parts.empty();
      const auto& part = split ? p.parts[static_cast<size_t>(index % parts)] : PartSettings();
      for (const Run& r : split ? part.rows : all_rows) {
        for (int64_t row = r.begin; row < r.end; ++row) {
          for (const Run& c : split ? part.cols : all_cols) {
            for (int64_t col = c.begin; col < c.end; ++col)
              elements.push_back((index / parts * rows + row) * cols + col);
          }
        }
      }
    }
  }
  const auto spread = [&](std::vector<unsigned char>& to, StateKind kind) {
    const auto from = state(param, kind);
    const bool half =
        !adamw && group_of(optimizer_->settings(), param).momentum_dtype == DType::kBF16;
    const size_t size = half ? 2 : 4;
    if (from.size() != elements.size() * size)
      throw std::runtime_error("a state view has a wrong size");
    for (size_t i = 0; i < elements.size(); ++i)
      std::memcpy(to.data() + static_cast<size_t>(elements[i]) * size, from.data() + i * size,
                  size);
  };
  spread(full.momentum[static_cast<size_t>(param)], StateKind::kMomentum);
  if (adamw) spread(full.variance[static_cast<size_t>(param)], StateKind::kVariance);
}

void Rank::fill_gradients(int64_t step) {
  for (size_t i = 0; i < grads_.size(); ++i) {
    const DType dtype = case_->params[i].grad_dtype;
    for_each_element(grad_layouts_[i], rank_, [&](int64_t element, int64_t local) {
      store(grads_[i].data() + local * size_of(dtype), dtype,
            gradient(static_cast<int64_t>(i), element, step));
    });
    if (mirror_) mirror_->put(far_grads_[i], grads_[i].data(), std::ssize(grads_[i]));
  }
}

Status Rank::step_only(int64_t step, StepReport& report) {
  const auto read_args = [&] {
    StepArgs s;
    s.lr = case_->lr;
    if (static_cast<size_t>(step) < case_->inactive_params.size())
      s.inactive_params = case_->inactive_params[static_cast<size_t>(step)];
    if (case_->arguments) case_->arguments(s, step, rank_);
    return s;
  };
  if (case_->async) optimizer_->step_async(read_args);
  return case_->async ? optimizer_->wait(report) : optimizer_->step(read_args, report);
}

Status Rank::step(int64_t step, StepReport& report) {
  fill_gradients(step);
  return step_only(step, report);
}

std::vector<unsigned char> Rank::state(int64_t param, StateKind kind) {
  const StateView view = optimizer_->state(param, kind);
  const int64_t size = view.dtype == static_cast<int32_t>(DType::kF32) ? 4 : 2;
  std::vector<unsigned char> out(static_cast<size_t>(view.numel * size));
  if (mirror_) {
    mirror_->get(out.data(), view.data, std::ssize(out));
  } else if (!out.empty()) {
    std::memcpy(out.data(), view.data, out.size());
  }
  return out;
}

void Rank::mirror_buffers() {
  for (size_t i = 0; i < data_.size(); ++i) {
    far_data_.push_back(mirror_->make(std::ssize(data_[i])));
    far_grads_.push_back(mirror_->make(std::ssize(grads_[i])));
    mirror_->put(far_data_[i], data_[i].data(), std::ssize(data_[i]));
  }
}

void Rank::read_data() {
  for (size_t i = 0; mirror_ && i < data_.size(); ++i)
    mirror_->get(data_[i].data(), far_data_[i], std::ssize(data_[i]));
}

bool Rank::add_to(Tensors& full, std::vector<std::vector<bool>>& seen) {
  read_data();
  const size_t count = case_->params.size();
  full.params.resize(count);
  full.momentum.resize(count);
  full.variance.resize(count);
  full.remainder.resize(count);
  seen.resize(count);
  bool equal = true;
  for (size_t i = 0; i < count; ++i) {
    const Param& p = case_->params[i];
    const bool adamw = p.role == Role::kAdamW;
    const auto numel = static_cast<size_t>(layouts_[i].numel());
    const auto index = static_cast<int64_t>(i);
    full.params[i].resize(numel * static_cast<size_t>(size_of(p.dtype)));
    const auto momentum_size = static_cast<size_t>(
        size_of(optimizer_->settings().groups[p.role == Role::kMuon ? 0 : 1].momentum_dtype));
    full.momentum[i].resize(numel * momentum_size);
    const bool split = p.master_kind == MasterKind::kRemainder;
    if (split) full.remainder[i].resize(numel * 2);
    if (adamw) full.variance[i].resize(numel * 4);
    seen[i].resize(numel);
    const bool local_state = !keeps(index);
    if (!local_state) add_owner_state(index, full);
    const auto momentum = state(index, StateKind::kMomentum);
    const auto remainder =
        split ? state(index, StateKind::kRemainder) : std::vector<unsigned char>{};
    const auto variance = adamw ? state(index, StateKind::kVariance) : std::vector<unsigned char>{};
    const auto place = [&](std::vector<unsigned char>& to, const std::vector<unsigned char>& from,
                           size_t size, int64_t element, int64_t local) {
      unsigned char* there = to.data() + static_cast<size_t>(element) * size;
      const unsigned char* here = from.data() + static_cast<size_t>(local) * size;
      if (seen[i][static_cast<size_t>(element)]) {
        equal = equal && std::memcmp(there, here, size) == 0;
      } else {
        std::memcpy(there, here, size);
      }
    };
    visit(index, [&](int64_t element, int64_t local) {
      place(full.params[i], data_[i], static_cast<size_t>(size_of(p.dtype)), element, local);
      if (local_state) place(full.momentum[i], momentum, momentum_size, element, local);
      if (split) place(full.remainder[i], remainder, 2, element, local);
      if (local_state && adamw) place(full.variance[i], variance, 4, element, local);
      seen[i][static_cast<size_t>(element)] = true;
    });
  }
  return equal;
}

void on_ranks(int ranks, const std::function<void(Comm&)>& work, ThreadFaults faults) {
  ThreadGroup group(ranks, std::move(faults));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        HostComm comm(group.transport(rank));
        work(comm);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  // A failed check ends its rank, so other ranks also fail. The test reports only the check.
  std::exception_ptr first;
  for (const auto& e : errors) {
    if (!e) continue;
    if (!first) first = e;
    try {
      std::rethrow_exception(e);
    } catch (const test_support::FailedCheck&) {
      throw;
    } catch (...) {
    }
  }
  if (first) std::rethrow_exception(first);
}

Tensors tensors_after(const Case& of, const std::function<void(Rank&, Comm&)>& script,
                      const MakeDevice& make_device, ThreadFaults faults) {
  Tensors out;
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  bool replicas_equal = true;
  on_ranks(
      of.world,
      [&](Comm& comm) {
        comm.set_timeout_ms(60000);
        Rank rank(of, comm, make_device);
        script(rank, comm);
        const std::lock_guard lock(mutex);
        replicas_equal = rank.add_to(out, seen) && replicas_equal;
      },
      std::move(faults));
  if (!replicas_equal) throw std::runtime_error("replicas differ: " + of.describe());
  return out;
}

Outcome run(const Case& of, const MakeDevice& make_device, ThreadFaults faults) {
  Outcome out;
  const auto steps = [&](Rank& rank, Comm& comm) {
    std::vector<StepReport> reports(static_cast<size_t>(of.steps));
    for (int step = 0; step < of.steps; ++step) rank.step(step, reports[static_cast<size_t>(step)]);
    if (comm.rank() == 0) out.reports = reports;
  };
  out.tensors = tensors_after(of, steps, make_device, std::move(faults));
  return out;
}

}  // namespace world
