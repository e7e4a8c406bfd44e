#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "state/copy/device_copy.hpp"
#include "state/digits.hpp"
#include "state/sources.hpp"
#include "support/checkpoints.hpp"
#include "support/rank_check.hpp"
#include "support/wrapped_device.hpp"

// Tests loads that fail while they are writing, the files that a load opens, and memory that the
// host cannot access.

using namespace muonrt;

namespace {

/// Flips one bit of the first data byte of a file, in place.
void damage(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  unsigned char length[8];
  file.read(reinterpret_cast<char*>(length), 8);
  const int at = 8 + length[0] + 256 * length[1];
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(byte);
}

std::filesystem::path file_of(const std::string& folder, const std::string& end) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().string().ends_with(end)) return entry.path();
  return {};
}

}  // namespace

TEST_CASE("checkpoint: a load that fails while it writes ends the optimizer on every rank",
          "[unit][state]") {
  world::Case c = world::on_mesh({2});
  c.params.push_back(world::matrix("w", {6, 5}, {{PlacementKind::kShard, 0, 1}}));
  int64_t rejected = 0, ended = 0, late = 0;
  for (int64_t nth = 1; late == 0 && nth < 40; ++nth) {
    const test_support::Folder folder;
    resumed::save(c, 2, folder.path());
    std::atomic<bool> loading = false;
    std::atomic<int64_t> operations = 0;
    ThreadFaults faults;
    // The file of rank 1 is damaged after rank 1 has performed `nth` operations of the load.
    faults.after_operation = [&](int32_t, int32_t rank, const Operation&) {
      if (rank == 1 && loading && ++operations == nth)
        damage(file_of(folder.path(), "1.safetensors"));
    };
    std::vector<std::string> loads(2), steps(2);
    world::on_ranks(
        2,
        [&](Comm& comm) {
          comm.set_timeout_ms(60000);
          world::Rank rank(c, comm);
          const auto number = static_cast<size_t>(comm.rank());
          if (number == 1) loading = true;
          const auto weights = rank.data(0), momentum = rank.state(0, StateKind::kMomentum);
          loads[number] =
              resumed::problem_of([&] { load_state(rank.optimizer(), folder.path(), {}); });
          if (number == 1) loading = false;
          if (loads[number].find("CORRUPT") != std::string::npos &&
              loads[number].find("partly written") == std::string::npos) {
            RANK_CHECK(rank.data(0) == weights);
            RANK_CHECK(rank.state(0, StateKind::kMomentum) == momentum);
            RANK_CHECK(rank.optimizer().steps() == 0);
          }
          steps[number] = resumed::problem_of([&] { resumed::run_steps(rank, 2, 3); });
        },
        std::move(faults));
    INFO("after operation " << nth << ": " << loads[0]);
    CHECK(loads[0] == loads[1]);
    if (loads[0] == "no error") {
      ++late;
    } else {
      CHECK_THAT(loads[0], Catch::Contains("CORRUPT") && Catch::Contains("1.safetensors"));
      const bool partly = loads[0].find("state is partly written") != std::string::npos;
      (partly ? ended : rejected) += 1;
      for (const std::string& step : steps) {
        if (partly) CHECK_THAT(step, Catch::Contains("INVALID_STATE"));
        if (!partly) CHECK(step == "no error");
      }
    }
  }
  CHECK(rejected > 0);
  CHECK(ended > 0);
  CHECK(late == 1);
}

TEST_CASE("checkpoint: a rank opens only the files that it needs, the corresponding one first",
          "[unit][state]") {
  world::Case c = world::on_mesh({4});
  for (const char* name : {"a", "b"}) {
    c.params.push_back(world::matrix(name, {8, 6}, {{PlacementKind::kShard, 0, 1}}));
    c.params.back().role = Role::kAdamW;
  }
  const test_support::Folder folder;
  resumed::save(c, 2, folder.path());
  const std::string name = folder.path() + "/manifest.json";
  std::ifstream file(name);
  const Manifest manifest =
      parse_manifest(std::string(std::istreambuf_iterator<char>(file), {}), name);
  REQUIRE(manifest.files.size() == 4);
  std::filesystem::remove(folder.path() + "/" + manifest.files[2].name);
  // Which of the 8 rows each rank reads, and whether the rank needs the removed file, which
  // contains rows 4 and 5.
  struct Reader {
    int rank, world;
    int64_t row, end;
    bool reads;
  };
  for (const Reader& r : {Reader{0, 4, 0, 2, true},
                          {1, 4, 2, 4, true},
                          {2, 4, 4, 6, false},
                          {3, 4, 6, 8, true},
                          {0, 2, 0, 4, true},
                          {1, 2, 4, 8, false},
                          {0, 1, 0, 8, false},
                          {7, 8, 7, 8, true},
                          {5, 8, 5, 6, false}}) {
    INFO("rank " << r.rank << " of " << r.world);
    StateSources sources(folder.path(), manifest, r.rank, r.world);
    const Extent rows{{8, 6}, {{{r.row, r.end}}, {{0, 6}}}, 0, (r.end - r.row) * 6};
    int64_t elements = 0;
    const auto read = [&] {
      for (const char* param : {"b", "a"})
        sources.read(param, static_cast<int32_t>(StateKind::kVariance), rows, param,
                     [&](int64_t, int64_t, std::span<const unsigned char> bytes) {
                       elements += std::ssize(bytes) / 4;
                     });
    };
    if (r.reads) {
      read();
      CHECK(elements == 2 * rows.numel());
    } else {
      CHECK_THROWS_WITH(read(), Catch::Contains(manifest.files[2].name));
    }
  }
}

TEST_CASE("checkpoint: memory that the host cannot access is copied through memory that it can",
          "[unit][state]") {
  class Far : public wrapped::Device {
   public:
    using wrapped::Device::Device;
    bool host_reaches_memory() const override { return false; }
  };
  Far device(world::host_device(OptimizerSettings()),
             [](Ops& ops) { return std::make_unique<wrapped::Ops>(ops); });
  DeviceCopy copy(device, 60000);
  std::vector<uint32_t> in((5 << 18) + 3), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto bytes = static_cast<int64_t>(in.size() * 4);
  const Buffer far(device, bytes);
  copy.write(far.data(), in.data(), bytes);
  CHECK(std::memcmp(far.data(), in.data(), static_cast<size_t>(bytes)) == 0);
  copy.read(out.data(), far.data(), bytes);
  CHECK((in == out));
}

namespace {

/// Returns a case with one rank and one bf16 matrix with this kind of master weights.
world::Case weights(MasterKind kind) {
  world::Case c = world::on_mesh({1});
  c.params.push_back(world::matrix("w", {6, 5}, {}));
  c.params.back().role = Role::kAdamW;
  c.params.back().dtype = DType::kBF16;
  c.params.back().master_kind = kind;
  if (kind != MasterKind::kCaller) return c;
  auto masters = std::make_shared<std::vector<float>>(30, 0.3125f);
  c.adjust = [masters](OptimizerSettings& settings, int) {
    settings.params[0].master = masters->data();
  };
  return c;
}

/// Changes the manifest in a folder, and updates its checksum.
void change_manifest(const std::string& folder, const std::function<void(Manifest&)>& change) {
  const std::string path = folder + "/manifest.json";
  Manifest manifest = parse_manifest(resumed::content(path), path);
  change(manifest);
  resumed::put(path, to_text(manifest));
}

std::string problem_of_load(const world::Case& c, const std::string& folder) {
  return resumed::problem_of([&] { resumed::load(c, 2, 3, folder); });
}

}  // namespace

TEST_CASE("checkpoint: a manifest's numbers and dtypes are bounded before anything is written",
          "[unit][state]") {
  const world::Case c = weights(MasterKind::kOwned);
  const test_support::Folder folder;
  resumed::save(c, 2, folder.path());
  const int64_t most = int64_t{1} << 53;
  const auto rejected = [&](const world::Case& by, const std::function<void(Manifest&)>& change,
                            const std::string& words) {
    const test_support::Folder other;
    std::filesystem::copy(folder.path(), other.path());
    change_manifest(other.path(), change);
    const std::string problem = problem_of_load(by, other.path());
    CHECK_THAT(problem, Catch::Contains(words) && !Catch::Contains("partly"));
  };
  rejected(
      c, [&](Manifest& m) { m.save = kMaxSaves + 1; }, "save is 10000000000");
  rejected(
      c, [&](Manifest& m) { m.step = most + 1; }, "step is 9007199254740993");
  rejected(
      c, [&](Manifest& m) { m.params[0].updates = most + 1; }, "updates is 9007199254740993");
  rejected(
      c, [&](Manifest& m) { m.params[0].state["master"] = "U16"; }, "'master' in 'U16'");
  // A load also checks the dtype if it converts master weights to remainders or vice versa.
  for (const MasterKind kind : {MasterKind::kOwned, MasterKind::kRemainder}) {
    const bool owned = kind == MasterKind::kOwned;
    const test_support::Folder other;
    resumed::save(weights(kind), 2, other.path());
    change_manifest(other.path(), [&](Manifest& m) {
      m.params[0].state[owned ? "master" : "remainder"] = owned ? "BF16" : "F32";
    });
    const auto problem =
        problem_of_load(weights(owned ? MasterKind::kRemainder : MasterKind::kOwned), other.path());
    CHECK_THAT(problem, Catch::Contains(owned ? "dtype of master is F32, but was BF16" : "'F32'"));
  }
}

TEST_CASE("checkpoint: a manifest with more values than a save can write is rejected",
          "[unit][state]") {
  const auto problem = [](const std::string& members) {
    const std::string rest = cat("\"format\": \"muonrt checkpoint 1\", ", members, "}\n");
    const std::string sum = digits_of(crc32c(rest.data(), rest.size()), 8);
    return resumed::problem_of(
        [&] { parse_manifest(cat("{\"crc32c\": \"", sum, "\",\n", rest), "m"); });
  };
  const auto many = [](int64_t count, const std::function<std::string(int64_t)>& text) {
    std::string out = text(0);
    for (int64_t i = 1; i < count; ++i) out += "," + text(i);
    return out;
  };
  const auto member = [](int64_t i) { return cat("\"m", i, "\":0"); };
  const std::string numbers = many(1001, [](int64_t) { return "0"; });
  const std::string rest = R"("save":0,"step":0,"seed":"0000000000000000","with_params":false)";
  for (const std::string& list :
       {cat("\"more\":[", numbers, "]"), cat("\"params\":[{\"shape\":[", numbers, "]}]"),
        cat("\"groups\":[{}, {", many(501, member), "}]")})
    CHECK_THAT(problem(list), Catch::Contains("more than 1000 values"));
  CHECK_THAT(problem(many(60, member)), Catch::Contains("more than 50 members"));
  CHECK_THAT(problem(cat("\"groups\":[", many(200, [](int64_t) { return "{}"; }), "]")),
             Catch::Contains("more than 106 groups"));
  CHECK_THAT(problem(rest + R"(,"groups":[],"params":{},"files":[])"),
             Catch::Contains("params is missing or has the wrong type"));
  CHECK_THAT(problem(rest + R"(,"groups":[],"params":[],"params":[],"files":[])"),
             Catch::Contains("'params' occurs twice"));
  CHECK_THAT(problem(rest + R"(,"groups":[],"params":[])"), Catch::Contains("files is missing"));
  CHECK_THAT(problem(rest + R"(,"groups":[[]],"params":[],"files":[])"),
             Catch::Contains("groups[0]: the value is not an object"));
  // The limit of 1000 values applies to each item of a list.
  const std::string file = R"({"name":"f","bytes":1,"header_crc32c":"00000000"})";
  const std::string files = many(2000, [&](int64_t) { return file; });
  const std::string well =
      problem(cat(rest, R"(,"params":[],"groups":[{}],"files":[)", files, "]"));
  CHECK(well == "no error");
}

TEST_CASE("checkpoint: with partial, missing master weights are copied from the parameter",
          "[unit][state]") {
  const test_support::Folder folder;
  resumed::save(weights(MasterKind::kNone), 2, folder.path());
  for (const MasterKind kind :
       {MasterKind::kOwned, MasterKind::kCaller, MasterKind::kRemainder, MasterKind::kNone}) {
    INFO("kind " << static_cast<int>(kind));
    const auto problem = resumed::problem_of(
        [&] { resumed::load(weights(kind), 2, 3, folder.path(), {.partial = true}); });
    CHECK(problem == "no error");
  }
}

TEST_CASE("checkpoint: with partial, a new parameter gets a key that no other parameter has",
          "[unit][state]") {
  world::Case c = weights(MasterKind::kStochastic);
  c.params.push_back(c.params[0]);
  c.params.back().name = "v";
  world::Case other = c;
  other.params[0].name = "new";  // v keeps key 1; key 0 belonged to w, so "new" must not get it
  std::swap(other.params[0], other.params[1]);
  const test_support::Folder folder;
  resumed::save(c, 2, folder.path());
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(other, comm);
    load_state(rank.optimizer(), folder.path(), {.partial = true});
    const auto keys = rank.optimizer().random_keys().keys;
    RANK_CHECK(keys == std::vector<uint32_t>{1, 2});
  });
}

TEST_CASE("checkpoint: moments that a load would reject are not saved", "[unit][state]") {
  const world::Case c = weights(MasterKind::kOwned);
  const test_support::Folder folder;
  resumed::save(c, 1, folder.path());
  const auto put = [](StateKind kind, float bad) {
    return [=](Optimizer& o) { std::memcpy(o.state(0, kind).data, &bad, sizeof bad); };
  };
  struct Row {
    const char* words;
    std::function<void(Optimizer&)> spoil;
  };
  for (const Row& row : {Row{"element 0", put(StateKind::kMomentum, std::nanf(""))},
                         Row{"element 0", put(StateKind::kVariance, -1.0f)},
                         Row{"element 0", put(StateKind::kVariance, HUGE_VALF)},
                         Row{"but must be 0 at step 0", [](Optimizer& o) { o.set_steps(0); }}}) {
    std::string problem;
    world::on_ranks(1, [&](Comm& comm) {
      world::Rank rank(c, comm);
      resumed::run_steps(rank, 0, 2);
      row.spoil(rank.optimizer());
      Files files;
      problem =
          resumed::problem_of([&] { save_state(rank.optimizer(), folder.path(), {}, files); });
    });
    CHECK_THAT(problem, Catch::Contains("INVALID_STATE") && Catch::Contains(row.words));
    CHECK(parse_manifest(resumed::content(folder.path() + "/manifest.json"), "m").step == 1);
    CHECK(resumed::names_in(folder.path()).size() == 2);
  }
  change_manifest(folder.path(), [](Manifest& m) { m.step = 0; });
  CHECK_THAT(problem_of_load(c, folder.path()), Catch::Contains("but must be 0 at step 0"));
}
