#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"
#include "plan/machine/named_profiles.hpp"
#include "support/thread_ranks.hpp"

using Catch::Contains;

namespace {

/// The arguments of one rank: a Muon matrix of 8 x 4 and a bias.
struct Arguments {
  Arguments() {
    muonrt_group_init_muon(&groups[0]);
    muonrt_group_init_adamw(&groups[1]);
    for (int i = 0; i < 2; ++i) {
      muonrt_param_init(&params[i]);
      params[i].group = i;
      params[i].name = i == 0 ? "matrix" : "bias";
      params[i].ndim = 2 - i;
      params[i].shape = shape + 2 * i;
      params[i].data = data + 32 * i;
      params[i].grad = grad + 32 * i;
    }
  }
  const int64_t shape[3] = {8, 4, 8};
  float data[40] = {}, grad[40] = {};
  muonrt_group_t groups[2];
  muonrt_param_t params[2];
  const muonrt_optimizer_options_t* options = nullptr;
};

/// Creates an optimizer on `size` ranks and returns the error message, or "" if there is no error.
/// Checks that all ranks have the same message. Then calls `work` on each rank.
std::string create_message(int size, const std::function<void(int, Arguments&)>& change,
                           const std::function<void(muonrt_optimizer_t*)>& work = {}) {
  muonrt_thread_group_t* group = nullptr;
  muonrt_thread_group_create(&group, size);
  std::vector<std::string> messages(static_cast<size_t>(size));
  const auto errors = transport_test::on_ranks(size, [&](int rank) {
    muonrt_comm_t* comm = nullptr;
    muonrt_comm_create_thread(&comm, group, rank);
    Arguments a;
    change(rank, a);
    muonrt_optimizer_t* optimizer = nullptr;
    if (muonrt_optimizer_create(&optimizer, comm, a.options, a.groups, 2, a.params, 2) != MUONRT_OK)
      messages[static_cast<size_t>(rank)] = muonrt_get_last_error();
    if (optimizer && work) work(optimizer);
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm);
  });
  muonrt_thread_group_destroy(group);
  CHECK(transport_test::text_of(errors) == "");
  for (const std::string& text : messages) CHECK(text == messages[0]);
  return messages[0];
}

}  // namespace

TEST_CASE("creation: an error names the numbers of parts that differ between ranks",
          "[unit][abi]") {
  static const muonrt_run_t top{0, 4}, bottom{4, 8};
  static muonrt_part_t parts[2];
  for (int i = 0; i < 2; ++i) {
    muonrt_part_init(&parts[i]);
    parts[i].rows = i == 0 ? &top : &bottom;
    parts[i].n_rows = 1;
  }
  CHECK_THAT(create_message(2,
                            [](int rank, Arguments& a) {
                              a.params[0].parts = rank == 1 ? parts : nullptr;
                              a.params[0].n_parts = rank == 1 ? 2 : 0;
                            }),
             Contains("param 'matrix': number of parts is 0 on rank 0 and 2 on rank 1"));
}

TEST_CASE("creation: an error names invalid sizes and names, and shortens a long name",
          "[unit][abi]") {
  static const int64_t huge = int64_t{1} << 61;
  static const std::string name(5000, 'n');
  const std::pair<const char*, std::function<void(int, Arguments&)>> cases[] = {
      {"param 'bias': data has 2305843009213693952 elements of 4 bytes",
       [](int, Arguments& a) { a.params[1].shape = &huge; }},
      {"param 1: name contains the control character",
       [](int, Arguments& a) { a.params[1].name = "w\n"; }},
      {"param 1: name contains the control character",
       [](int, Arguments& a) { a.params[1].name = "\x7f"; }},
      {"nn...' (5000 bytes): dtype is f16", [](int rank, Arguments& a) {
         a.params[0].name = name.c_str();
         if (rank == 1) a.params[0].dtype = MUONRT_DTYPE_F16;
       }}};
  for (const auto& [text, change] : cases) CHECK_THAT(create_message(2, change), Contains(text));
}

TEST_CASE("creation: an error names the submeshes that differ between ranks", "[unit][abi]") {
  static const int64_t two[] = {2}, many[] = {40, 1};
  static const int32_t mine[][2] = {{0, 2}, {1, 3}};
  const auto message = [](const std::function<void(int rank, muonrt_mesh_t& mesh)>& fill) {
    return create_message(4, [&](int rank, Arguments& a) {
      static thread_local muonrt_mesh_t mesh;
      static thread_local muonrt_layout_t layout;
      muonrt_mesh_init(&mesh);
      mesh.ndim = 1;
      fill(rank, mesh);
      muonrt_layout_init(&layout);
      layout.mesh = &mesh;
      a.params[1].layout = &layout;
    });
  };
  CHECK_THAT(message([](int rank, muonrt_mesh_t& mesh) {
               mesh.shape = two;
               mesh.ranks = mine[rank % 2];
             }),
             Contains("param 'bias': mesh is 2 ranks 0, 2 on rank 0 and 2 ranks 1, 3 on rank 1"));
  CHECK_THAT(message([](int rank, muonrt_mesh_t& mesh) { mesh.shape = rank == 3 ? many : two; }),
             Contains("param 'bias': its mesh contains rank 39"));
}

TEST_CASE("creation: clip_norm is 0 or in its range", "[unit][abi]") {
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  const auto create = [&](double value) {
    muonrt_optimizer_options_t options;
    muonrt_optimizer_options_init(&options);
    options.clip_norm = value;
    Arguments a;
    muonrt_optimizer_t* optimizer = nullptr;
    const muonrt_status_t status =
        muonrt_optimizer_create(&optimizer, comm, &options, a.groups, 2, a.params, 2);
    muonrt_optimizer_destroy(optimizer);
    return status;
  };
  for (const double value : {0.0, 1e-30}) CHECK(create(value) == MUONRT_OK);
  for (const double value : {1e-300, 1e-31}) {
    CHECK(create(value) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains("options: clip_norm is "));
  }
  muonrt_comm_destroy(comm);
}

TEST_CASE("creation: machine is a name or a profile, which the ranks compare", "[unit][abi]") {
  struct Options {
    muonrt_optimizer_options_t main;
    muonrt_tuning_options_t tuning;
  };
  const auto create = [&](const char* of_0, const char* of_1, int32_t device) {
    std::vector<Options> options(2);
    return create_message(
        2,
        [&](int rank, Arguments& a) {
          Options& o = options[static_cast<size_t>(rank)];
          muonrt_optimizer_options_init(&o.main);
          muonrt_tuning_options_init(&o.tuning);
          o.main.device = device;
          o.main.tuning = &o.tuning;
          o.tuning.replica_mode = MUONRT_REPLICA_MODE_AUTO;
          if (o.tuning.machine) throw std::logic_error("machine is not NULL by default");
          o.tuning.machine = rank == 0 ? of_0 : of_1;
          a.options = &o.main;
        },
        [&](muonrt_optimizer_t* o) {
          std::vector<char> json(1 << 16);
          muonrt_optimizer_describe_plan(json.data(), 1 << 16, nullptr, o, MUONRT_FORMAT_JSON);
          if (std::string(json.data()).find("\"machine\":\"host\"") == std::string::npos)
            throw std::runtime_error(json.data());
        });
  };
  std::string host, faster;
  for (const muonrt::NamedProfile& p : muonrt::named_profiles())
    if (p.name == std::string("host")) host = faster = p.json;
  const std::string bytes = "\"network_bytes\": {\"value\": 1";
  faster.replace(faster.find(bytes), bytes.size(), "\"network_bytes\": {\"value\": 2");
  // The default (NULL or ""), the name and the text of the profile select the same machine.
  for (const char* given : {static_cast<const char*>(nullptr), "", "host", host.c_str()}) {
    CHECK(create(given, given, MUONRT_DEVICE_HOST) == "");
    CHECK(create(given, "host", MUONRT_DEVICE_HOST) == "");
  }
  CHECK(create(faster.c_str(), faster.c_str(), MUONRT_DEVICE_HOST) == "");
  CHECK_THAT(create("host", faster.c_str(), MUONRT_DEVICE_HOST),
             Contains("options: machine is 'host' with digest ") && Contains(" on rank 0 and ") &&
                 Contains(" on rank 1"));
  CHECK_THAT(create("hosts", "hosts", MUONRT_DEVICE_HOST),
             Contains("options: machine is 'hosts', but must be one of a100, b200, h100") &&
                 Contains("the nearest name is 'host'"));
  CHECK_THAT(create("h20", "h20", MUONRT_DEVICE_HOST), Contains("the nearest name is 'h200'"));
  CHECK_THAT(create("h100", "h100", MUONRT_DEVICE_HOST),
             Contains("options: machine 'h100' is a GPU, but device is MUONRT_DEVICE_HOST"));
  CHECK_THAT(create("{}", "{}", MUONRT_DEVICE_HOST),
             Contains("options: machine: name is missing; add it to the profile"));
  CHECK_THAT(create("{", "{", MUONRT_DEVICE_HOST), Contains("options: machine"));
}

TEST_CASE("creation: the plan as JSON is valid UTF-8 even if names are not", "[unit][abi]") {
  CHECK(create_message(
            1, [](int, Arguments& a) { a.params[0].name = "w\xe4g\xff"; },
            [](muonrt_optimizer_t* o) {
              std::vector<char> text(1 << 16);
              muonrt_optimizer_describe_plan(text.data(), 1 << 16, nullptr, o, MUONRT_FORMAT_JSON);
              const std::string json = text.data();
              if (json.find("w\xef\xbf\xbdg\xef\xbf\xbd") == std::string::npos ||
                  json.find('\xe4') != std::string::npos)
                throw std::runtime_error(json);
              int64_t index = -1;
              muonrt_optimizer_find_param(&index, o, "w\xe4g\xff");
              if (index != 0) throw std::runtime_error("the name itself has changed");
            }) == "");
}

TEST_CASE("creation: a step number that was read can be set", "[unit][abi]") {
  CHECK(create_message(
            1, [](int, Arguments&) {},
            [](muonrt_optimizer_t* o) {
              muonrt_step_args_t args;
              muonrt_step_args_init(&args);
              args.lr = 0.1;
              int64_t step = 0;
              if (muonrt_optimizer_set_step(o, (int64_t{1} << 53) - 1) != MUONRT_OK ||
                  muonrt_optimizer_step(nullptr, o, &args) != MUONRT_OK ||
                  muonrt_optimizer_get_step(&step, o) != MUONRT_OK ||
                  muonrt_optimizer_set_step(o, step) != MUONRT_OK)
                throw std::runtime_error(muonrt_get_last_error());
            }) == "");
}

TEST_CASE("build info: the text names the transports", "[unit][abi]") {
  char text[2048];
  REQUIRE(muonrt_get_build_info(text, sizeof text, nullptr) == MUONRT_OK);
  CHECK_THAT(text, Contains("\"callback\", \"tcp\", \"folder\""));
}

TEST_CASE("creation: owners of a stack that is cut over experts, from a list and from assign",
          "[unit][abi]") {
  const int64_t shape[3] = {4, 4, 2};
  const int32_t owners[4] = {0, 0, 1, 1};
  const muonrt_placement_t experts = {MUONRT_PLACEMENT_SHARD, 0, 1};
  muonrt_layout_t layout;
  muonrt_layout_init(&layout);
  layout.placements = &experts;
  muonrt_distributed_config_t distributed;
  muonrt_distributed_config_init(&distributed);
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  tuning.distributed = &distributed;
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.tuning = &tuning;
  const auto created = [&](const int32_t* list, int64_t n_owners) {
    return create_message(2, [&](int, Arguments& a) {
      a.params[0].ndim = 3;
      a.params[0].shape = shape;
      a.params[0].layout = &layout;
      a.params[0].view = MUONRT_VIEW_STACK;
      a.params[0].owners = list;
      a.params[0].n_owners = n_owners;
      a.options = &options;
    });
  };
  CHECK(created(owners, 4) == "");
  CHECK_THAT(created(owners, 3), Contains("owners has 3 ranks, but the parameter has 4 matrices"));
  CHECK_THAT(created(nullptr, 4), Contains("n_owners is 4, but"));
  CHECK_THAT(created(owners, -1), Contains("n_owners is -1, but"));
  // This function assigns every matrix to the last rank that holds it.
  distributed.assign = [](void*, int64_t, const muonrt_assign_info_t* info, int32_t* owner) {
    if (info->n_matrices != 4 || info->matrix_begins[4] != 4) return 1;
    for (int64_t i = 0; i < info->n_matrices; ++i)
      owner[i] = info->matrix_holders[info->matrix_begins[i + 1] - 1];
    return owner[0] == 0 && owner[1] == 0 && owner[2] == 1 && owner[3] == 1 ? 0 : 2;
  };
  CHECK(created(nullptr, 0) == "");
  CHECK_THAT(created(owners, 4), Contains("owners is") && Contains("assign function"));
}
