#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "base/text.hpp"
#include "mpi/harness.hpp"
#include "muonrt/mpi_comm.h"
#include "muonrt/muonrt.h"

// A trainer that passes exchange callbacks over MPI through the C ABI. Its matrices are sharded by
// rows, and it calls MPI_Gatherv and MPI_Scatterv.

using namespace mpi_test;

namespace {

constexpr int kSteps = 4;
constexpr muonrt_placement_t kRows = {MUONRT_PLACEMENT_SHARD, 0, 1};

void require(muonrt_status_t status) {
  if (status != MUONRT_OK) throw std::runtime_error(muonrt_get_last_error());
}

struct Trainer {
  MPI_Comm mpi;
  int ranks = 1, rank = 0;
  muonrt_layout_t layout;
  std::vector<std::array<int64_t, 2>> shapes = {{13, 9}, {5, 8}, {6, 21}, {3, 3}};
  int64_t calls = 0;

  explicit Trainer(MPI_Comm comm) {
    MPI_Comm_dup(comm, &mpi);
    MPI_Comm_size(mpi, &ranks);
    MPI_Comm_rank(mpi, &rank);
    muonrt_layout_init(&layout);
    layout.placements = &kRows;
  }
  ~Trainer() { MPI_Comm_free(&mpi); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Number of elements of every rank, and index of its first element.
  void counts(int64_t param, std::vector<int>& count, std::vector<int>& first) const {
    const auto& shape = shapes[static_cast<size_t>(param)];
    int at = 0;
    for (int r = 0; r < ranks; ++r) {
      int64_t local[2];
      require(muonrt_layout_get_local_shape(local, &layout, ranks, 2, shape.data(), r));
      count.push_back(static_cast<int>(local[0] * local[1]));
      first.push_back(at);
      at += count.back();
    }
  }

  static int assign(void* state, int64_t param, const muonrt_assign_info_t* facts, int32_t* owner) {
    const auto& self = *static_cast<Trainer*>(state);
    if (facts->world != self.ranks || facts->ndim != 2 || facts->n_holders < 1) return 1;
    *owner = static_cast<int32_t>(param % self.ranks);
    return 0;
  }

  static int gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                    void*) {
    auto& self = *static_cast<Trainer*>(state);
    std::vector<int> count, first;
    self.counts(param, count, first);
    MPI_Gatherv(local, count[static_cast<size_t>(self.rank)], MPI_UINT16_T, full, count.data(),
                first.data(), MPI_UINT16_T, owner, self.mpi);
    ++self.calls;
    return 0;
  }

  static int redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                          void*) {
    auto& self = *static_cast<Trainer*>(state);
    std::vector<int> count, first;
    self.counts(param, count, first);
    MPI_Scatterv(full, count.data(), first.data(), MPI_UINT16_T, local,
                 count[static_cast<size_t>(self.rank)], MPI_UINT16_T, owner, self.mpi);
    ++self.calls;
    return 0;
  }
};

float number(int64_t param, int64_t element, int64_t step) {
  const auto x = static_cast<uint32_t>(param * 7919 + element * 104729 + (step + 1) * 1299709);
  return static_cast<float>(static_cast<int32_t>(x * 2654435761u)) / 2147483648.0f;
}

struct Result {
  std::vector<std::vector<float>> shards;
  int64_t bytes_sent = 0;
};

Result train(Trainer& t, const muonrt_distributed_config_t* config) {
  Result out;
  muonrt_comm_t* comm = nullptr;
  require(muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 60000));
  muonrt_group_t group;
  muonrt_group_init_muon(&group);
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  tuning.distributed = config;
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.tuning = &tuning;
  const size_t n = t.shapes.size(), mine = static_cast<size_t>(t.rank);
  const char* const names[] = {"a", "b", "c", "d"};
  std::vector<std::vector<float>> grads(n);
  std::vector<muonrt_param_t> params(n);
  out.shards.resize(n);
  // Fills this rank's rows of a step; -1: the weights.
  const auto fill = [&](size_t i, std::vector<float>& into, int step) {
    std::vector<int> count, first;
    t.counts(static_cast<int64_t>(i), count, first);
    into.resize(static_cast<size_t>(count[mine]) + 1);  // so that data() is not null
    for (int e = 0; e < count[mine]; ++e)
      into[static_cast<size_t>(e)] = number(static_cast<int64_t>(i), first[mine] + e, step);
  };
  for (size_t i = 0; i < n; ++i) {
    fill(i, out.shards[i], -1);
    fill(i, grads[i], 0);
    muonrt_param_init(&params[i]);
    params[i].name = names[i];
    params[i].ndim = 2;
    params[i].shape = t.shapes[i].data();
    params[i].layout = &t.layout;
    params[i].data = out.shards[i].data();
    params[i].grad = grads[i].data();
  }
  muonrt_optimizer_t* optimizer = nullptr;
  require(muonrt_optimizer_create(&optimizer, comm, &options, &group, 1, params.data(),
                                  static_cast<int64_t>(n)));
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < n; ++i) fill(i, grads[i], step);
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 0.02;
    require(muonrt_optimizer_step(nullptr, optimizer, &args));
  }
  muonrt_counters_t counters;
  muonrt_counters_init(&counters);
  require(muonrt_optimizer_get_counters(&counters, optimizer));
  out.bytes_sent = counters.bytes_sent;
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return out;
}

}  // namespace

TEST_CASE("functions: exchange callbacks over MPI give the same bits as the built-in exchanges",
          "[mpi]") {
  std::string problem;
  const std::string thrown = attempt([&] {
    Trainer t(MPI_COMM_WORLD);
    const Result built_in = train(t, nullptr);
    if (t.calls != 0) problem += "the callbacks were called although none were passed ";
    muonrt_distributed_config_t config;
    muonrt_distributed_config_init(&config);
    config.state = &t;
    config.assign = &Trainer::assign;
    config.gather = &Trainer::gather;
    config.redistribute = &Trainer::redistribute;
    for (const int serial : {0, 1}) {
      for (const int prefetch : {0, 1, 3}) {
        config.async_parallelism = !serial;
        config.prefetch_count = prefetch;
        t.calls = 0;
        const Result own = train(t, &config);
        const auto expected = static_cast<int64_t>(2 * kSteps * t.shapes.size());
        if (own.shards != built_in.shards)
          problem += muonrt::cat("differs, serial ", serial, ", prefetch ", prefetch, "; ");
        if (t.calls != expected)
          problem += muonrt::cat("calls, serial ", serial, ", prefetch ", prefetch, "; ");
        if (own.bytes_sent != 0)
          problem += muonrt::cat("built-in bytes, serial ", serial, ", prefetch ", prefetch, "; ");
      }
    }
    if (t.ranks > 1 && built_in.bytes_sent == 0) problem += "the built-in exchanges sent nothing ";
  });
  REQUIRE(on_all(problem + thrown) == "");
}
