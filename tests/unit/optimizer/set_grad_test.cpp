#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

// Tests gradients that are bound after the optimizer has been created. A gradient in memory that
// steps write must be rejected, even if the memory belongs to another parameter.

using Catch::Contains;

namespace {

constexpr int64_t kNumel = 12;
const int64_t kShape[2] = {3, 4};

/// An optimizer with three parameters: a bf16 matrix with the caller's master weights (a), an f32
/// AdamW parameter (b), and an f32 matrix with NorMuon (c).
struct Three {
  std::vector<uint16_t> half = std::vector<uint16_t>(kNumel, 0x3f80);
  std::vector<float> master = std::vector<float>(kNumel, 1.0f), b = master, c = master,
                     grad = std::vector<float>(4 * kNumel, 0.5f);
  muonrt::Comm comm = muonrt::Comm::self();
  muonrt::Optimizer optimizer = make();

  muonrt::Optimizer make() {
    std::vector<muonrt_group_t> groups = {muonrt::muon_group(), muonrt::adamw_group(),
                                          muonrt::muon_group()};
    groups[2].normuon_axis = MUONRT_NORMUON_ROWS;
    std::vector<muonrt_param_t> params(3, muonrt::param());
    void* const data[] = {half.data(), b.data(), c.data()};
    const char* const names[] = {"a", "b", "c"};
    for (int32_t i = 0; i < 3; ++i) {
      muonrt_param_t& p = params[static_cast<size_t>(i)];
      p.name = names[i];
      p.group = i;
      p.ndim = 2;
      p.shape = kShape;
      p.data = data[i];
      p.grad = grad.data() + i * kNumel;
      p.grad_dtype = MUONRT_DTYPE_F32;
    }
    params[0].dtype = MUONRT_DTYPE_BF16;
    params[0].master_kind = MUONRT_MASTER_CALLER;
    params[0].master = master.data();
    return {comm, muonrt::options(), groups, params};
  }

  void rejects(int64_t param, const void* memory, const char* what, const char* whose) {
    INFO(what << " of " << whose << " as the gradient of " << param);
    CHECK(muonrt_optimizer_set_grad(optimizer.get(), param, memory) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    const std::string message = muonrt_get_last_error();
    CHECK_THAT(message, Contains(std::string("grad overlaps the ") + what + " of param '" + whose));
    CHECK_THAT(message, Contains(std::string("param '") + "abc"[param] + "'"));
  }
};

}  // namespace

TEST_CASE("set_grad: memory that a step writes is rejected", "[unit][abi]") {
  Three t;
  const auto state = [&](int64_t param, muonrt_state_kind_t kind) {
    void* data = nullptr;
    for (const muonrt_state_shard_t& shard : t.optimizer.state_shards())
      if (shard.param == param && shard.kind == kind) data = shard.data;
    return data;
  };
  for (const int64_t i : {0, 1, 2}) {
    t.rejects(i, t.half.data(), "data", "a");
    t.rejects(i, t.master.data() + kNumel - 1, "master", "a");
    t.rejects(i, t.b.data() + 1, "data", "b");
    t.rejects(i, state(0, MUONRT_STATE_MOMENTUM), "momentum", "a");
    t.rejects(i, state(1, MUONRT_STATE_VARIANCE), "variance", "b");
    t.rejects(i, state(2, MUONRT_STATE_NORMUON), "NorMuon moments", "c");
  }
}

TEST_CASE("set_grad: if one of several is rejected, none is bound", "[unit][abi]") {
  Three t, same;
  const std::vector<float> others(kNumel, 0.25f);
  const std::vector<const void*> grads = {others.data(), others.data(), t.b.data()};
  CHECK_THROWS_WITH(t.optimizer.set_grads(grads),
                    Contains("param 'c': grad overlaps the data of param 'b' by 48 bytes"));
  t.optimizer.step(0.1);
  same.optimizer.step(0.1);
  CHECK(t.b == same.b);
  CHECK(t.half == same.half);
}

TEST_CASE("set_grad: gradients may share memory, and be next to memory that is written",
          "[unit][abi]") {
  Three t;
  const std::vector<float> shared(kNumel, 0.25f);
  t.optimizer.set_grads({shared.data(), shared.data(), shared.data()});
  t.optimizer.step(0.1);
  // One gradient ends directly before the parameter, and another gradient begins directly after the
  // parameter.
  std::vector<float> around(3 * kNumel, 0.5f);
  std::vector<muonrt_param_t> params(1, muonrt::param());
  params[0].name = "a";
  params[0].ndim = 2;
  params[0].shape = kShape;
  params[0].data = around.data() + kNumel;
  muonrt::Optimizer one(t.comm, muonrt::options(), {muonrt::muon_group()}, params);
  one.set_grad(0, around.data());
  one.set_grad(0, around.data() + 2 * kNumel);
  one.step(0.1);
}
