#include "support/world.hpp"

#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/text.hpp"
#include "comm/host_comm.hpp"
#include "host/host_device.hpp"
#include "layout/blocks.hpp"

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
  std::string out =
      cat("world ", world, " mesh ", mesh, " ranks ", rank_array, " window ", s.window, " chunk ",
          s.chunk_bytes, s.commit == CommitMode::kAtomic ? " atomic" : " eager", " threads ",
          s.threads, " transport ", name_of(s.transport), " iteration ", name_of(s.iteration));
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

std::unique_ptr<Device> host_device(const OptimizerSettings& settings) {
  return host::make_host_device({settings.threads, settings.portable_gemm});
}

std::vector<GroupSettings> default_groups() {
  return {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kAdamW)};
}

Layout layout_of(const Param& p, const std::shared_ptr<const Mesh>& mesh) {
  std::vector<Placement> placements = p.placements;
  placements.resize(static_cast<size_t>(mesh->dims()));
  return p.make_layout ? p.make_layout(mesh, p.shape)
                       : Layout::from_placements(mesh, p.shape, placements, p.reading);
}

Rank::Rank(const Case& of, Comm& comm, const MakeDevice& make_device)
    : case_(&of), rank_(comm.rank()) {
  const auto mesh = std::make_shared<Mesh>(of.mesh, std::vector<std::string>{}, of.rank_array);
  for (const Param& p : of.params) {
    Layout layout = layout_of(p, mesh);
    layouts_.push_back(p.view == View::kMatrix ? layout.as_matrix() : layout);
  }
  make_buffers();
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
          param.data = data_[i].data();
          param.grad = grads_[i].data();
          param.owner = p.owner;
          param.master_kind = p.master_kind;
          param.lr_factor = p.lr_factor;
          param.view = p.view;
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
    grads_.emplace_back(static_cast<size_t>(numel * size_of(p.grad_dtype)));
    visit(static_cast<int64_t>(i), [&](int64_t element, int64_t local) {
      store(data_[i].data() + local * size_of(p.dtype), p.dtype,
            value(static_cast<int64_t>(i), element, -1));
    });
  }
}

void Rank::fill_gradients(int64_t step) {
  for (size_t i = 0; i < grads_.size(); ++i) {
    const DType dtype = case_->params[i].grad_dtype;
    visit(static_cast<int64_t>(i), [&](int64_t element, int64_t local) {
      store(grads_[i].data() + local * size_of(dtype), dtype,
            value(static_cast<int64_t>(i), element, step));
    });
  }
}

Status Rank::step_only(int64_t step, StepReport& report) {
  return optimizer_->step(
      [&] {
        StepSettings s;
        s.lr = case_->lr;
        if (static_cast<size_t>(step) < case_->without_grad.size()) {
          s.without_grad = case_->without_grad[static_cast<size_t>(step)];
        }
        return s;
      },
      report);
}

Status Rank::step(int64_t step, StepReport& report) {
  fill_gradients(step);
  return step_only(step, report);
}

std::vector<unsigned char> Rank::state(int64_t param, StateKind kind) {
  const StateView view = optimizer_->state(param, kind);
  const int64_t size = view.dtype == static_cast<int32_t>(DType::kF32) ? 4 : 2;
  std::vector<unsigned char> out(static_cast<size_t>(view.numel * size));
  if (!out.empty()) std::memcpy(out.data(), view.data, out.size());
  return out;
}

bool Rank::add_to(Tensors& full, std::vector<std::vector<bool>>& seen) {
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
      place(full.momentum[i], momentum, momentum_size, element, local);
      if (split) place(full.remainder[i], remainder, 2, element, local);
      if (adamw) place(full.variance[i], variance, 4, element, local);
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
  for (const auto& e : errors) {
    if (e) std::rethrow_exception(e);
  }
}

Outcome run(const Case& of, const MakeDevice& make_device, ThreadFaults faults) {
  Outcome out;
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  bool replicas_equal = true;
  on_ranks(
      of.world,
      [&](Comm& comm) {
        comm.set_timeout_ms(60000);
        Rank rank(of, comm, make_device);
        std::vector<StepReport> reports;
        for (int step = 0; step < of.steps; ++step) {
          reports.emplace_back();
          rank.step(step, reports.back());
        }
        const std::lock_guard lock(mutex);
        replicas_equal = rank.add_to(out.tensors, seen) && replicas_equal;
        if (comm.rank() == 0) out.reports = reports;
      },
      std::move(faults));
  if (!replicas_equal) throw std::runtime_error("replicas differ: " + of.describe());
  return out;
}

}  // namespace world
