#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

// Tests that the caller may free the arguments of create() and step() after the call. Also tests
// learning rates of groups, and enum arguments that are out of range.

namespace {

void* take(void*, int64_t bytes, int32_t, void*) {
  return std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
}
void give(void*, void* memory, int64_t, int32_t, void*) { std::free(memory); }
int first(void*, int64_t, const muonrt_assign_info_t*, int32_t* owner) {
  *owner = 0;
  return 0;
}

/// The buffers of two parameters: an attention weight of 4 x 6 with two parts, and a vector.
struct Buffers {
  std::vector<float> data = std::vector<float>(30), grad = std::vector<float>(30);
  Buffers() {
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<float>(i % 7) - 3.0f;
      grad[i] = static_cast<float>(i % 5) - 1.5f;
    }
  }
};

/// All other data that create() reads, in one object.
struct Arguments {
  char names[8][8] = {"matrix", "rest", "wq", "upper", "lower", "bias", "world", ""};
  int64_t shape[2] = {4, 6}, length = 6, strides[2] = {6, 1}, one = 1, values[2] = {0, 6};
  const char* mesh_names[1] = {names[6]};
  int32_t ranks[1] = {0}, mesh_dims[1] = {0}, restarts[1] = {2}, select[1] = {1};
  double custom[15] = {};
  muonrt_cut_t cut = {mesh_dims, 1, 0, 1, 1};
  muonrt_run_t rows[2] = {{0, 2}, {2, 4}};
  muonrt_mesh_t mesh;
  muonrt_layout_t cuts = muonrt::layout(), flat = muonrt::layout();
  muonrt_part_t parts[2] = {muonrt::part(), muonrt::part()};
  muonrt_qk_clip_t clip = muonrt::qk_clip();
  muonrt_allocator_t allocator = muonrt::allocator();
  muonrt_distributed_config_t distributed = muonrt::distributed_config();
  muonrt_optimizer_options_t options = muonrt::options();
  muonrt_tuning_options_t tuning = muonrt::tuning_options();
  muonrt_debug_options_t debug = muonrt::debug_options();
  muonrt_group_t groups[2] = {muonrt::muon_group(), muonrt::adamw_group()};
  muonrt_param_t params[2] = {muonrt::param(), muonrt::param()};

  explicit Arguments(Buffers& b) {
    muonrt_mesh_init(&mesh);
    mesh.ndim = 1;
    mesh.shape = &one;
    mesh.names = mesh_names;
    mesh.ranks = ranks;
    cuts.mesh = flat.mesh = &mesh;
    cuts.cuts = &cut;
    cuts.n_cuts = 1;
    flat.kind = MUONRT_LAYOUT_FLAT;
    flat.values = values;
    flat.n_values = 2;
    for (int i = 0; i < 2; ++i) {
      parts[i].name = names[3 + i];
      parts[i].rows = rows + i;
      parts[i].n_rows = 1;
    }
    clip.kind = MUONRT_QK_QUERY;
    clip.heads = 2;
    clip.head_dim = 2;
    clip.select = select;
    clip.n_select = 1;
    allocator.allocate = take;
    allocator.release = give;
    distributed.assign = first;
    tuning.allocator = &allocator;
    tuning.distributed = &distributed;
    options.tuning = &tuning;
    options.debug = &debug;
    for (int i = 0; i < 5; ++i) {
      custom[3 * i] = 1.875;
      custom[3 * i + 1] = -1.25;
      custom[3 * i + 2] = 0.375;
    }
    groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM;
    groups[0].custom = custom;
    groups[0].form = MUONRT_FORM_GRAM;
    groups[0].gram_restarts = restarts;
    groups[0].n_gram_restarts = 1;
    for (int i = 0; i < 2; ++i) {
      groups[i].name = names[i];
      params[i].group = i;
      params[i].name = names[i == 0 ? 2 : 5];
      params[i].ndim = 2 - i;
      params[i].shape = i == 0 ? shape : &length;
      params[i].local_shape = params[i].shape;
      params[i].layout = i == 0 ? &cuts : &flat;
      params[i].data = b.data.data() + 24 * i;
      params[i].grad = b.grad.data() + 24 * i;
    }
    params[0].grad_layout = &cuts;
    params[0].strides = params[0].grad_strides = strides;
    params[0].parts = parts;
    params[0].n_parts = 2;
    params[0].qk_clip = &clip;
  }
};

/// Runs two steps and returns the parameters.
std::vector<float> stepped(bool freed) {
  Buffers b;
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  auto a = std::make_unique<Arguments>(b);
  muonrt_optimizer_t* optimizer = nullptr;
  const muonrt_status_t status =
      muonrt_optimizer_create(&optimizer, comm, &a->options, a->groups, 2, a->params, 2);
  INFO(muonrt_get_last_error());
  REQUIRE(status == MUONRT_OK);
  if (freed) {
    muonrt_comm_destroy(comm);
    std::memset(static_cast<void*>(a.get()), 0xAA, sizeof *a);
    a.reset();
  }
  const float logits[2] = {50.0f, 400.0f};
  for (int i = 0; i < 2; ++i) {
    muonrt_step_args_t args = muonrt::step_args();
    args.lr = 0.1;
    args.qk_logits = logits;
    args.n_qk_logits = 2;
    CHECK(muonrt_optimizer_step(nullptr, optimizer, &args) == MUONRT_OK);
  }
  int64_t length = 0, found = -1;
  CHECK(muonrt_optimizer_describe_plan(nullptr, 0, &length, optimizer, MUONRT_FORMAT_TEXT) ==
        MUONRT_OK);
  CHECK((muonrt_optimizer_find_param(&found, optimizer, "bias") == MUONRT_OK && found == 1));
  muonrt_optimizer_destroy(optimizer);
  if (!freed) muonrt_comm_destroy(comm);
  return b.data;
}

}  // namespace

TEST_CASE("arguments: everything except buffers may be freed after create has returned",
          "[unit][abi]") {
  const Buffers before;
  const std::vector<float> kept = stepped(false);
  CHECK(kept != before.data);
  CHECK(stepped(true) == kept);
}

TEST_CASE("arguments: group_lrs have the same effect as the lr_factors of the groups",
          "[unit][abi]") {
  const auto run = [](bool by_group) {
    Buffers b;
    Arguments a(b);
    a.options = muonrt::options();
    a.params[0].qk_clip = nullptr;
    muonrt::Optimizer optimizer(muonrt::Comm::self(), a.options, {a.groups[0], a.groups[1]},
                                {a.params[0], a.params[1]});
    for (int i = 1; i <= 2; ++i) {
      const double rates[2] = {0.25 / i, 0.03};
      muonrt_step_args_t args = muonrt::step_args();
      if (by_group) {
        args.group_lrs = rates;
        args.n_group_lrs = 2;
      } else {
        args.lr = 1.0;
        for (int g = 0; g < 2; ++g) {
          a.groups[g].lr_factor = rates[g];
          optimizer.set_group(g, a.groups[g]);
        }
      }
      optimizer.step(args);
    }
    return b.data;
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("arguments: one lr is rejected if a scale rule needs another rate than AdamW",
          "[unit][abi]") {
  using Catch::Contains;
  const char* const names[] = {"match_rms", "original", "ratio", "max_dim", "none"};
  for (int32_t rule = 0; rule < 5; ++rule) {
    for (const int used : {0, 1, 2}) {  // parameters of 0: both groups, 1: Muon, 2: AdamW
      Buffers b;
      Arguments a(b);
      a.options = muonrt::options();
      a.params[0].qk_clip = nullptr;
      a.groups[0].scale_rule = rule;
      std::vector<muonrt_param_t> params;
      if (used != 2) params.push_back(a.params[0]);
      if (used != 1) params.push_back(a.params[1]);
      muonrt::Optimizer optimizer(muonrt::Comm::self(), a.options, {a.groups[0], a.groups[1]},
                                  params);
      const auto step = [&](const double* rates) {
        muonrt_step_args_t args = muonrt::step_args();
        if (!rates) args.lr = 0.25;
        args.group_lrs = rates;
        args.n_group_lrs = rates ? 2 : 0;
        return muonrt_optimizer_step(nullptr, optimizer.get(), &args);
      };
      const std::vector<float> before = b.data;
      const bool rejected = rule != 0 && used == 0;
      CAPTURE(rule, used);
      CHECK(step(nullptr) == (rejected ? MUONRT_ERROR_INVALID_ARGUMENT : MUONRT_OK));
      CHECK((b.data == before) == rejected);
      if (!rejected) continue;
      CHECK_THAT(muonrt_get_last_error(), Contains("lr is 0.25") && Contains("group 0 'matrix'") &&
                                              Contains(names[rule]) && Contains("group 1 'rest'") &&
                                              Contains("group_lrs"));
      const double rates[2] = {0.25, 0.25};
      CHECK(step(rates) == MUONRT_OK);
      CHECK(step(nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
      a.groups[1].lr_factor = 0.5;
      optimizer.set_group(1, a.groups[1]);
      CHECK(step(nullptr) == MUONRT_OK);
    }
  }
}

TEST_CASE("arguments: constant data can be sent without a cast", "[unit][abi]") {
  const float out[3] = {1, 2, 3};
  float in[3] = {};
  muonrt::Comm comm = muonrt::Comm::self();
  comm.exchange({muonrt_send_t{0, 0, out, sizeof out}}, {muonrt_receive_t{0, 0, in, sizeof in}});
  CHECK(std::equal(out, out + 3, in));
  float all[3] = {};
  comm.allgather(all, out, sizeof out);
  CHECK(std::equal(out, out + 3, all));
}

TEST_CASE("arguments: messages with a reserved field other than 0 are rejected", "[unit][abi]") {
  const int32_t out = 1;
  int32_t in = 0;
  for (const bool send_reserved : {true, false}) {
    muonrt_comm_t* comm = nullptr;
    REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
    const muonrt_send_t send = {0, send_reserved ? 3 : 0, &out, sizeof out};
    const muonrt_receive_t receive = {0, send_reserved ? 0 : 3, &in, sizeof in};
    CHECK(muonrt_comm_exchange(comm, &send, 1, &receive, 1) == MUONRT_ERROR_INVALID_ARGUMENT);
    const std::string message = muonrt_get_last_error();
    CHECK(message.find(send_reserved ? "sends[0].reserved is 3" : "receives[0].reserved is 3") !=
          std::string::npos);
    CHECK(in == 0);
    muonrt_comm_destroy(comm);
  }
}

TEST_CASE("arguments: MUONRT_VERSION_AT_LEAST compares major, minor and patch", "[unit][abi]") {
  constexpr int kMajor = MUONRT_VERSION_MAJOR, kMinor = MUONRT_VERSION_MINOR,
                kPatch = MUONRT_VERSION_PATCH;
  STATIC_REQUIRE(MUONRT_VERSION_AT_LEAST(kMajor, kMinor, kPatch));
  STATIC_REQUIRE(MUONRT_VERSION_AT_LEAST(kMajor, kMinor - 1, kPatch + 1));
  STATIC_REQUIRE(!MUONRT_VERSION_AT_LEAST(kMajor, kMinor, kPatch + 1));
  STATIC_REQUIRE(!MUONRT_VERSION_AT_LEAST(kMajor, kMinor + 1, 0));
  STATIC_REQUIRE(!MUONRT_VERSION_AT_LEAST(kMajor + 1, 0, 0));
}

TEST_CASE("arguments: without tuning and debug options the defaults apply", "[unit][abi]") {
  const auto plan = [](bool given) {
    Buffers b;
    Arguments a(b);
    a.tuning = muonrt::tuning_options();
    if (!given) a.options.tuning = nullptr;
    if (!given) a.options.debug = nullptr;
    muonrt::Optimizer optimizer(muonrt::Comm::self(), a.options, {a.groups[0], a.groups[1]},
                                {a.params[0], a.params[1]});
    return optimizer.describe_plan(MUONRT_FORMAT_JSON);
  };
  CHECK(plan(false) == plan(true));
}

TEST_CASE("arguments: fields of tuning and debug options take effect", "[unit][abi]") {
  Buffers b;
  Arguments a(b);
  const auto create = [&] {
    return muonrt::Optimizer(muonrt::Comm::self(), a.options, {a.groups[0], a.groups[1]},
                             {a.params[0], a.params[1]});
  };
  a.tuning.distributed = nullptr;  // otherwise its prefetch_count would replace window
  const std::string plan = create().describe_plan(MUONRT_FORMAT_JSON);
  a.tuning.window = 5;  // with one rank, the window is always 1
  CHECK(create().describe_plan(MUONRT_FORMAT_JSON) == plan);
  a.tuning.max_peers = 5;
  CHECK(create().describe_plan(MUONRT_FORMAT_JSON) != plan);

  muonrt::Optimizer silent = create();
  silent.step(0.1);
  CHECK_THROWS_AS(silent.trace(MUONRT_FORMAT_JSON), muonrt::Error);
  a.debug.trace = 1;
  muonrt::Optimizer traced = create();
  traced.step(0.1);
  CHECK(traced.trace(MUONRT_FORMAT_JSON).find("\"ph\"") != std::string::npos);
}

TEST_CASE("processors: an optimizer uses those of the thread that creates it", "[unit][api]") {
  const auto threads_of_optimizer = [](int threads) {
    muonrt::Comm comm = muonrt::Comm::self();
    std::vector<float> w(4), g(4);
    muonrt_param_t param = muonrt::param();
    const int64_t shape[] = {2, 2};
    param.name = "w";
    param.ndim = 2;
    param.shape = shape;
    param.data = w.data();
    param.grad = g.data();
    auto options = muonrt::options();
    if (threads >= 0) options.threads = threads;
    return muonrt::Optimizer(comm, options, std::vector{muonrt::muon_group()}, std::vector{param})
        .counters()
        .threads;
  };
  cpu_set_t all, first;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&first);
  for (int cpu = 0; CPU_COUNT(&first) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &first);
  CHECK(threads_of_optimizer(-1) == threads_of_optimizer(0));
  CHECK(threads_of_optimizer(0) <= CPU_COUNT(&all));
  CHECK(threads_of_optimizer(5) == 5);
  REQUIRE(sched_setaffinity(0, sizeof first, &first) == 0);
  const int64_t on_one = threads_of_optimizer(0);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
  CHECK(on_one == 1);
}
