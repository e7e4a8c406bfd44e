#include "optimizer/optimizer.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "comm/host_comm.hpp"
#include "comm/self_transport.hpp"
#include "cuda/machine.hpp"
#include "cuda/nccl/self_comm.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Param {
  const char* name;
  std::vector<int64_t> shape;
  Role role;
  DType dtype, grad_dtype;
  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t s : shape) n *= s;
    return n;
  }
};

std::vector<Param> params() {
  constexpr DType f = DType::kF32, h = DType::kBF16;
  return {{"wide", {24, 80}, Role::kMuon, f, f}, {"tall", {70, 12}, Role::kMuon, h, h},
          {"twin", {24, 80}, Role::kMuon, f, h}, {"row", {1, 37}, Role::kMuon, f, f},
          {"bias", {53}, Role::kAdamW, f, f},    {"embedding", {29, 12}, Role::kAdamW, h, h},
          {"none", {0, 3}, Role::kAdamW, f, f}};
}

/// One rank whose buffers are in the memory of its device.
class Rig {
 public:
  Rig(Machine& memory, const std::function<std::unique_ptr<Device>()>& make, CommitMode commit,
      Comm& comm, int64_t health_every = 0)
      : memory_(memory) {
    const auto mesh = std::make_shared<Mesh>(std::vector<int64_t>{1}, std::vector<std::string>{},
                                             std::vector<int32_t>{});
    settings.groups = {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kAdamW)};
    settings.commit = commit;
    settings.chunk_bytes = 4000;
    settings.window = 2;
    settings.poison = true;
    settings.health_every = health_every;
    uint64_t seed = 1;
    for (const Param& p : params()) {
      ParamSettings s;
      s.name = p.name;
      s.group = p.role == Role::kMuon ? 0 : 1;
      s.dtype = p.dtype;
      s.grad_dtype = p.grad_dtype;
      s.layout = Layout::from_placements(mesh, p.shape, {Placement{}}, Reading::kLiteral);
      s.data = memory.put(values(seed, p.dtype, p.numel()));
      s.grad = memory.put(values(seed + 1, p.grad_dtype, p.numel()));
      seed += 10;
      settings.params.push_back(std::move(s));
    }
    optimizer = Optimizer::create(
        comm, [&] { return settings; }, [&](const OptimizerSettings&) { return make(); });
  }

  Status step(uint64_t number) {
    for (size_t i = 0; i < settings.params.size(); ++i) {
      const Param p = params()[i];
      optimizer->set_grad(static_cast<int64_t>(i),
                          memory_.put(values(1000 * number + i, p.grad_dtype, p.numel())));
    }
    return step_only();
  }
  /// Runs a step.
  /// @param multiplier  a factor for all gradients in device memory; may be null.
  Status step_only(const float* multiplier = nullptr) {
    return optimizer->step(
        [&] {
          StepArgs s;
          s.lr = 0.02;
          s.grad_multiplier = multiplier;
          return s;
        },
        report);
  }

  Bytes data(size_t param) const {
    const Param p = params()[param];
    return bytes_of(settings.params[param].data, p.numel() * size_of(p.dtype));
  }
  Bytes state(size_t param, StateKind kind) const {
    const StateView view = optimizer->state(static_cast<int64_t>(param), kind);
    return bytes_of(view.data, view.numel * 4);
  }
  Bytes bytes_of(const void* from, int64_t bytes) const {
    return from ? memory_.get(static_cast<const unsigned char*>(from), bytes) : Bytes();
  }

  OptimizerSettings settings;
  std::unique_ptr<Optimizer> optimizer;
  StepReport report;

 private:
  Machine& memory_;
};

std::unique_ptr<Device> cuda_device() { return make_device(); }
std::unique_ptr<Device> host_device() { return make_host(); }

}  // namespace

TEST_CASE("cuda step: results equal those of the host, except for products", "[cuda]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    Machine cuda_memory(cuda_device()), host_memory(host_device());
    SelfComm cuda_comm, host_comm;
    Rig on_cuda(cuda_memory, cuda_device, commit, cuda_comm);
    Rig on_host(host_memory, host_device, commit, host_comm);
    for (uint64_t step = 0; step < 3; ++step) {
      CHECK(on_cuda.step(step) == Status::kOk);
      CHECK(on_host.step(step) == Status::kOk);
      CHECK(on_cuda.report.orthogonalized == 4);
      CHECK(on_cuda.report.step == on_host.report.step);
    }
    for (size_t i = 0; i < params().size(); ++i) {
      const Param p = params()[i];
      INFO(p.name);
      CHECK(difference(on_cuda.state(i, StateKind::kMomentum),
                       on_host.state(i, StateKind::kMomentum)) == -1);
      const Bytes got = on_cuda.data(i), expected = on_host.data(i);
      if (p.role == Role::kAdamW) {
        CHECK(difference(on_cuda.state(i, StateKind::kVariance),
                         on_host.state(i, StateKind::kVariance)) == -1);
        CHECK(difference(got, expected) == -1);
        continue;
      }
      // Updates are sent as bf16. In each step, an update may therefore differ by one or two bf16
      // rounding errors, and the weight may differ by one rounding error.
      double worst = 0, unit = p.dtype == DType::kF32 ? 0 : 0x1p-8;
      for (int64_t e = 0; e < p.numel(); ++e)
        worst = std::max(worst, std::abs(static_cast<double>(value_in(got, p.dtype, e)) -
                                         static_cast<double>(value_in(expected, p.dtype, e))));
      const double step_size =
          0.02 * 0.2 * std::sqrt(static_cast<double>(std::max(p.shape[0], p.shape[1])));
      CHECK(worst <= 3 * step_size * 0x1p-6 + unit);
    }
  }
}

TEST_CASE("cuda step: Newton-Schulz from graphs is bitwise identical", "[cuda]") {
  Machine eager_memory(cuda_device()), graph_memory(cuda_device());
  SelfComm eager_comm, graph_comm;
  const Device* device = nullptr;
  Rig eager(eager_memory, cuda_device, CommitMode::kAtomic, eager_comm);
  Rig graphs(
      graph_memory,
      [&] {
        auto made = make_cuda_device(0, {.graphs = true});
        device = made.get();
        return made;
      },
      CommitMode::kAtomic, graph_comm);
  // The graphs, one for each batch, are captured when the optimizer is created. No object is
  // created later.
  const int64_t objects = device->objects();
  CHECK(objects > eager.optimizer->device().objects());
  for (uint64_t step = 0; step < 4; ++step) {
    CHECK(eager.step(step) == Status::kOk);
    CHECK(graphs.step(step) == Status::kOk);
  }
  CHECK(device->objects() == objects);
  for (size_t i = 0; i < params().size(); ++i) {
    INFO(params()[i].name);
    CHECK(difference(graphs.data(i), eager.data(i)) == -1);
    CHECK(difference(graphs.state(i, StateKind::kMomentum), eager.state(i, StateKind::kMomentum)) ==
          -1);
  }
}

TEST_CASE("cuda step: no step allocates memory or creates an object, not even the first",
          "[cuda]") {
  struct Form {
    CommitMode commit;
    bool graphs;
    int64_t health_every;
  };
  for (const Form form : {Form{CommitMode::kAtomic, false, 0}, Form{CommitMode::kEager, false, 1},
                          Form{CommitMode::kAtomic, true, 2}}) {
    Machine memory(cuda_device());
    SelfComm comm;
    const auto make = [&] { return make_cuda_device(0, {.graphs = form.graphs}); };
    Rig rig(memory, make, form.commit, comm, form.health_every);
    const float* const one = memory.put_one(1.0f);
    const Device& device = rig.optimizer->device();
    const int64_t allocations = device.allocations(), objects = device.objects();
    const int64_t slow = slow_calls();
    for (int step = 0; step < 3; ++step) {
      REQUIRE(rig.step_only(step == 0 ? one : nullptr) == Status::kOk);
      CHECK(rig.report.orthogonalized == 4);
    }
    CHECK(slow_calls() == slow);
    CHECK(device.allocations() == allocations);
    CHECK(device.objects() == objects);
  }
}

TEST_CASE("cuda step: a communicator of host memory is rejected at creation", "[cuda]") {
  Machine memory(cuda_device());
  HostComm comm(make_self_transport());
  try {
    Rig(memory, cuda_device, CommitMode::kAtomic, comm);
    FAIL("created");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kNotSupported);
    CHECK_THAT(e.message(), Catch::Contains("works on host memory"));
  }
}
