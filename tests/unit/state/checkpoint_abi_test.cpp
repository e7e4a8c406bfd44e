// Tests checkpoints through the C ABI.

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "support/folder.hpp"
#include "support/numerics/noise.hpp"

using Catch::Contains;
using test_support::noise;

namespace {

constexpr int64_t kRows = 7, kCols = 5;

/// An optimizer of a Muon matrix and a replicated vector for AdamW. With several ranks, the matrix
/// is sharded by rows.
class Trainer {
 public:
  explicit Trainer(muonrt::Comm comm) : comm_(std::move(comm)) {
    const int64_t ranks = comm_.size(), each = (kRows + ranks - 1) / ranks;
    first_ = std::min(kRows, comm_.rank() * each);
    rows_ = std::min(kRows, first_ + each) - first_;
    weights.resize(static_cast<size_t>(rows_ * kCols));
    grad_.resize(weights.size());
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i] = noise(first_ * kCols + static_cast<int64_t>(i));
    muonrt_placement_t rows = {MUONRT_PLACEMENT_SHARD, 0, 1};
    muonrt_layout_t layout = muonrt::layout();
    layout.placements = &rows;
    const int64_t shape[] = {kRows, kCols};
    muonrt_param_t param = muonrt::param();
    param.name = "w";
    param.ndim = 2;
    param.shape = shape;
    param.layout = &layout;
    param.data = weights.data();
    param.grad = grad_.data();
    muonrt_param_t vector = muonrt::param();
    vector.name = "b";
    vector.group = 1;
    vector.ndim = 1;
    vector.shape = shape;
    vector.data = bias.data();
    vector.grad = bias_grad_.data();
    optimizer.emplace(comm_, muonrt::options(),
                      std::vector{muonrt::muon_group(), muonrt::adamw_group()},
                      std::vector{param, vector});
  }

  void step(int64_t number) {
    for (size_t i = 0; i < grad_.size(); ++i)
      grad_[i] = noise(5000 * (number + 1) + first_ * kCols + static_cast<int64_t>(i));
    for (size_t i = 0; i < bias_grad_.size(); ++i)
      bias_grad_[i] = noise(7000 * (number + 1) + static_cast<int64_t>(i));
    optimizer->step(0.01);
  }

  std::optional<muonrt::Optimizer> optimizer;
  std::vector<float> weights, bias = std::vector<float>(kRows);

 private:
  muonrt::Comm comm_;
  int64_t first_ = 0, rows_ = 0;
  std::vector<float> grad_, bias_grad_ = std::vector<float>(kRows);
};

void on_two(const std::function<void(int, Trainer&)>& work) {
  muonrt::ThreadGroup group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Trainer trainer(group.comm(rank));
      work(rank, trainer);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace

TEST_CASE("checkpoint: a caller saves on two ranks, during a step, and continues on one",
          "[unit][abi][state]") {
  const test_support::Folder folder;
  Trainer whole(muonrt::Comm::self());
  for (int step = 0; step < 4; ++step) whole.step(step);
  muonrt_save_options_t save;
  muonrt_save_options_init(&save);
  CHECK(save.keep == 1);
  on_two([&](int, Trainer& trainer) {
    trainer.step(0);
    trainer.step(1);
    trainer.optimizer->save_reserve(&save);
    trainer.optimizer->save_begin(folder.path(), &save);
    trainer.step(2);
    trainer.optimizer->save_wait();
  });
  Trainer later(muonrt::Comm::self());
  later.optimizer->load(folder.path());
  CHECK(later.optimizer->load_notes() ==
        "parameters: 2 loaded (168 bytes), 0 rounded from master weights, 0 unchanged because they "
        "are not in the checkpoint\n");
  CHECK(later.optimizer->steps() == 2);
  later.step(2);
  later.step(3);
  CHECK(later.weights == whole.weights);
  CHECK(later.bias == whole.bias);
}

TEST_CASE("checkpoint: the shards of all ranks cover the state, and one rank writes each element",
          "[unit][abi][state]") {
  std::map<std::pair<int64_t, int32_t>, std::vector<int>> held, written;
  std::mutex mutex;
  int odd = 0;  // number of shards with a wrong dtype, begin != 0, or no memory
  on_two([&](int, Trainer& trainer) {
    const auto shards = trainer.optimizer->state_shards();
    const std::lock_guard lock(mutex);
    for (const muonrt_state_shard_t& r : shards) {
      odd += r.begin != 0 || r.dtype != MUONRT_DTYPE_F32 || r.data == nullptr;
      std::vector<int>& here = held[{r.param, r.kind}];
      std::vector<int>& wrote = written[{r.param, r.kind}];
      const int64_t numel = r.param == 0 ? kRows * kCols : kRows;
      here.resize(static_cast<size_t>(numel));
      wrote.resize(static_cast<size_t>(numel));
      // Each shard consists of whole rows. The runs of the first dimension list these rows.
      const int64_t width = r.ndim == 2 ? r.shape[1] : 1;
      int64_t local = 0;
      for (int64_t i = 0; i < r.n_runs[0]; ++i) {
        for (int64_t e = r.runs[i].begin * width; e < r.runs[i].end * width; ++e, ++local) {
          here[static_cast<size_t>(e)] += 1;
          wrote[static_cast<size_t>(e)] += local >= r.write_begin && local < r.write_end;
        }
      }
    }
  });
  const std::vector<int> once(kRows * kCols, 1), each(kRows, 1), twice(kRows, 2);
  CHECK(odd == 0);
  CHECK(held.size() == 3);
  CHECK((held[{0, MUONRT_STATE_MOMENTUM}] == once));
  CHECK((written[{0, MUONRT_STATE_MOMENTUM}] == once));
  for (const int32_t kind : {MUONRT_STATE_MOMENTUM, MUONRT_STATE_VARIANCE}) {
    CHECK((held[{1, kind}] == twice));
    CHECK((written[{1, kind}] == each));
  }
}

TEST_CASE("checkpoint: invalid options are an error on every rank", "[unit][abi][state]") {
  const test_support::Folder folder;
  std::vector<std::string> errors(2);
  on_two([&](int rank, Trainer& trainer) {
    muonrt_save_options_t save;
    muonrt_save_options_init(&save);
    if (rank == 1) save.keep = 0;
    if (muonrt_optimizer_save(trainer.optimizer->get(), folder.path().c_str(), &save) ==
        MUONRT_ERROR_INVALID_ARGUMENT)
      errors[static_cast<size_t>(rank)] = muonrt_get_last_error();
    trainer.step(0);
  });
  CHECK(errors[0] == errors[1]);
  CHECK_THAT(errors[0], Contains("rank 1") && Contains("keep is 0"));
  Trainer one(muonrt::Comm::self());
  muonrt_optimizer_t* const o = one.optimizer->get();
  CHECK(muonrt_optimizer_save(o, nullptr, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("folder is NULL"));
  muonrt_load_options_t load;
  muonrt_load_options_init(&load);
  load.partial = 2;
  CHECK(muonrt_optimizer_load(o, folder.path().c_str(), &load) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("partial is 2"));
  load.partial = 0;
  load.manifest = "../manifest.json";
  CHECK(muonrt_optimizer_load(o, folder.path().c_str(), &load) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_load(o, folder.path().c_str(), nullptr) == MUONRT_ERROR_IO);
  CHECK_THAT(muonrt_get_last_error(), Contains("manifest.json") && Contains("cannot be opened"));
  int64_t n = -1;
  CHECK(muonrt_optimizer_get_state_shards(nullptr, -1, &n, o) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_get_state_shards(nullptr, 0, &n, o) == MUONRT_OK);
  CHECK(n == 3);
}

TEST_CASE("checkpoint: only one save may be in progress, and it ends with the optimizer",
          "[unit][abi][state]") {
  const test_support::Folder folder;
  {
    Trainer one(muonrt::Comm::self());
    muonrt_optimizer_t* const o = one.optimizer->get();
    const char* const path = folder.path().c_str();
    CHECK(muonrt_optimizer_save_wait(o) == MUONRT_ERROR_INVALID_STATE);
    CHECK_THAT(muonrt_get_last_error(), Contains("no save is in progress"));
    int64_t bytes = 0;
    REQUIRE(muonrt_optimizer_save_reserve(&bytes, o, nullptr) == MUONRT_OK);
    CHECK(bytes == 4 * (2 * kRows * kCols + 3 * kRows));
    REQUIRE(muonrt_optimizer_save_begin(o, path, nullptr) == MUONRT_OK);
    for (const muonrt_status_t status :
         {muonrt_optimizer_save_begin(o, path, nullptr), muonrt_optimizer_save(o, path, nullptr),
          muonrt_optimizer_load(o, path, nullptr),
          muonrt_optimizer_save_reserve(nullptr, o, nullptr)}) {
      CHECK(status == MUONRT_ERROR_INVALID_STATE);
      CHECK_THAT(muonrt_get_last_error(), Contains("a save is in progress"));
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    CHECK(entry.path().filename() == ".muonrt-lock");
}

TEST_CASE("checkpoint: notes and counters state what was saved and found", "[unit][abi][state]") {
  const test_support::Folder folder;
  std::vector<float> f(6, 0.5F), grads(12, 1.0F);
  std::vector<uint16_t> w(6, 0x3f00);  // 0.5 in bf16
  const int64_t shape[] = {2, 3};
  std::vector<muonrt_param_t> params(2, muonrt::param());
  for (auto& p : params) {
    p.ndim = 2;
    p.shape = shape;
    p.grad = grads.data();
    p.grad_dtype = MUONRT_DTYPE_F32;
  }
  params[1].grad = grads.data() + 6;
  params[0].name = "f";
  params[0].data = f.data();
  params[1].name = "w";
  params[1].data = w.data();
  params[1].dtype = MUONRT_DTYPE_BF16;
  muonrt::Comm comm = muonrt::Comm::self();
  const auto make = [&] {
    return muonrt::Optimizer(comm, muonrt::options(), std::vector{muonrt::muon_group()}, params);
  };
  muonrt::Optimizer one = make();
  one.step(0.1);
  CHECK(one.counters().saved_bytes == 0);
  one.save(folder.path());
  // The save contains two momenta, the master weights and the f32 parameter.
  CHECK(one.counters().saved_bytes == 4 * 6 * 4);
  CHECK(one.counters().saved_param_bytes == 6 * 4);
  const auto at_save = std::pair{f, w};
  f.assign(6, 0.0F);
  w.assign(6, 0);
  muonrt::Optimizer other = make();
  other.load(folder.path());
  CHECK(std::pair{f, w} == at_save);
  CHECK(other.load_notes() ==
        "parameters: 1 loaded (24 bytes), 1 rounded from master weights, 0 unchanged because they "
        "are not in the checkpoint\n");
  muonrt_save_options_t options;
  muonrt_save_options_init(&options);
  options.without_params = 1;
  one.save(folder.path(), &options);
  CHECK(one.counters().saved_bytes == 3 * 6 * 4);
  CHECK(one.counters().saved_param_bytes == 0);
  CHECK(one.save_reserve(&options) == 3 * 6 * 4);
  CHECK(one.save_reserve() == 4 * 6 * 4);
  options.without_params = 2;
  CHECK_THROWS_WITH(one.save(folder.path(), &options), Contains("without_params is 2"));
}
