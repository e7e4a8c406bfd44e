// Tests reading checkpoints without an optimizer, through the C ABI.

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/folder.hpp"
#include "unit/state/checkpoint_model.hpp"

using Catch::Contains;
using namespace checkpoint_model;

namespace {

Bytes content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void flip(const std::string& path, size_t byte) {
  Bytes all = content(path);
  all.at(byte) ^= 16;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(all.data()), std::ssize(all));
}

/// Returns the paths of the data files in the order of the ranks.
std::vector<std::string> data_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

/// Checks that the status is `expected` and that the message contains all texts.
void check_error(muonrt_status_t status, muonrt_status_t expected,
                 const std::vector<std::string>& texts) {
  CHECK(status == expected);
  for (const std::string& text : texts) CHECK_THAT(muonrt_get_last_error(), Contains(text));
}

constexpr auto kInvalid = MUONRT_ERROR_INVALID_ARGUMENT;
constexpr auto kCorrupt = MUONRT_ERROR_CORRUPT;

}  // namespace

TEST_CASE("checkpoint reader: whole tensors of any mesh have the values of the optimizer",
          "[unit][abi][state]") {
  const std::map<Key, Bytes> expected = values_after(3);
  for (const int32_t ranks : {1, 2, 3}) {
    const test_support::Folder folder;
    save(folder.path(), ranks, 3);
    muonrt::Checkpoint checkpoint(folder.path());
    checkpoint.verify();
    CHECK(checkpoint.problems().empty());
    const muonrt_checkpoint_info_t info = checkpoint.info();
    CHECK(info.format_version == 1);
    CHECK(info.with_params == 1);
    CHECK(info.n_files == ranks);
    CHECK(info.step == 3);
    CHECK(info.save == 1);
    CHECK(info.n_params == static_cast<int64_t>(std::size(kModel)));
    CHECK(info.n_tensors == static_cast<int64_t>(expected.size()));
    int64_t bytes = 0, parts = 0;
    for (const std::string& path : data_files(folder.path()))
      bytes += static_cast<int64_t>(std::filesystem::file_size(path));
    CHECK(info.bytes == bytes);
    std::string last_param;
    for (int64_t i = 0; i < info.n_tensors; ++i) {
      const muonrt_checkpoint_tensor_t tensor = checkpoint.tensor(i);
      CAPTURE(ranks, tensor.param, tensor.kind);
      // The first tensor of each parameter contains its values.
      CHECK((tensor.kind == MUONRT_STATE_PARAM) == (tensor.param != last_param));
      last_param = tensor.param;
      const auto found = expected.find({tensor.param, tensor.kind});
      REQUIRE(found != expected.end());
      const Bytes& values = found->second;
      REQUIRE(tensor.bytes == std::ssize(values));
      CHECK(checkpoint.read(i) == values);
      CHECK(tensor.has_data == 1);
      CHECK(checkpoint.find_tensor(tensor.param,
                                   static_cast<enum muonrt_state_kind>(tensor.kind)) == i);
      const auto model = std::find_if(std::begin(kModel), std::end(kModel), [&](const Tensor& t) {
        return std::string(t.name) == tensor.param;
      });
      const bool neurons = tensor.kind == MUONRT_STATE_NORMUON;
      CHECK(std::vector(tensor.shape, tensor.shape + tensor.ndim) ==
            (neurons ? std::vector<int64_t>{8} : model->shape));
      CHECK(tensor.dtype == (tensor.kind == MUONRT_STATE_PARAM       ? model->dtype
                             : tensor.kind == MUONRT_STATE_REMAINDER ? 0
                                                                     : MUONRT_DTYPE_F32));
      CHECK(tensor.role == (model->group == 2 ? MUONRT_ROLE_ADAMW : MUONRT_ROLE_MUON));
      CHECK(tensor.momentum_kind ==
            (model->group == 0 ? MUONRT_MOMENTUM_HEAVY_BALL : MUONRT_MOMENTUM_EMA));
      CHECK(tensor.momentum == (model->group == 2 ? 0.9 : 0.95));
      CHECK(tensor.update_count == 3);
      CHECK((tensor.n_parts > 0) == (tensor.bytes > 0));
      parts += tensor.n_parts;
    }
    CHECK((parts > info.n_tensors) == (ranks > 1));
    CHECK_THAT(checkpoint.manifest(), Contains("\"format\": \"muonrt checkpoint 1\"") ||
                                          Contains("\"format\":\"muonrt checkpoint 1\""));
  }
}

TEST_CASE("checkpoint reader: without parameters there are hashes only", "[unit][abi][state]") {
  const test_support::Folder with, without;
  save(with.path(), 2, 1);
  save(without.path(), 2, 1, 0);
  muonrt::Checkpoint first(with.path()), second(without.path());
  CHECK(second.info().with_params == 0);
  CHECK(second.info().n_tensors == first.info().n_tensors);
  const int64_t index = second.find_tensor("columns", MUONRT_STATE_PARAM);
  const muonrt_checkpoint_tensor_t tensor = second.tensor(index);
  CHECK(tensor.has_data == 0);
  CHECK(tensor.bytes == 0);
  CHECK(tensor.n_parts == 0);
  CHECK(tensor.dtype == MUONRT_DTYPE_BF16);
  CHECK(std::vector(tensor.shape, tensor.shape + tensor.ndim) == kModel[1].shape);
  CHECK(tensor.hash == first.tensor(index).hash);
  CHECK(tensor.hash != 0);
  char byte = 0;
  check_error(muonrt_checkpoint_read(&byte, 0, second.get(), index), kInvalid,
              {"param of param 'columns'", "hash", "without_params"});
  const int64_t momentum = second.find_tensor("columns", MUONRT_STATE_MOMENTUM);
  CHECK(second.read(momentum) == first.read(momentum));
  second.verify();
}

TEST_CASE("checkpoint reader: kept checkpoints are listed and opened", "[unit][abi][state]") {
  const test_support::Folder folder;
  CHECK(muonrt::Checkpoint::list(folder.path()).empty());
  Rank rank(muonrt::Comm::self());
  for (int64_t s = 0; s < 3; ++s) {
    rank.step(s);
    rank.save(folder.path(), 0, 3);
  }
  // Files with these names are not manifests.
  for (const char* other :
       {"manifest-1.json", "manifest-0000000001-0000000000000001.json.bak", "x"})
    std::ofstream(folder.path() + "/" + other) << "{}";
  const std::vector<std::string> expected = {"manifest.json",
                                             "manifest-0000000002-0000000000000002.json",
                                             "manifest-0000000001-0000000000000001.json"};
  CHECK(muonrt::Checkpoint::list(folder.path()) == expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t step = 3 - static_cast<int64_t>(i);
    muonrt::Checkpoint checkpoint(folder.path(), expected[i]);
    CHECK(checkpoint.info().step == step);
    CHECK(checkpoint.info().save == step);
    const auto values = values_after(step);
    CHECK(checkpoint.read(checkpoint.find_tensor("bias", MUONRT_STATE_VARIANCE)) ==
          values.at({"bias", MUONRT_STATE_VARIANCE}));
  }
  // A checkpoint whose files are open remains readable after a save has removed the files.
  muonrt::Checkpoint first(folder.path(), expected[2]), second(folder.path(), expected[1]);
  const Bytes before = first.read(1);
  rank.save(folder.path(), 0, 1);
  CHECK(first.read(1) == before);
  CHECK(muonrt::Checkpoint::list(folder.path()) == std::vector<std::string>{"manifest.json"});
  auto tensor = muonrt::detail::filled(muonrt_checkpoint_tensor_init_sized);
  check_error(muonrt_checkpoint_get_tensor(&tensor, second.get(), 1), MUONRT_ERROR_IO,
              {".safetensors", "cannot be opened"});
}

TEST_CASE(
    "checkpoint reader: damage is reported with file and bytes, and other tensors stay readable",
    "[unit][abi][state]") {
  const test_support::Folder folder;
  save(folder.path(), 2, 2);
  const std::string manifest = folder.path() + "/manifest.json";
  const std::vector<std::string> files = data_files(folder.path());
  const Bytes whole = content(files[1]);
  const size_t header = 8 + whole[0] + 256u * whole[1];
  for (const size_t byte : {size_t{3}, size_t{20}, header - 1, header, whole.size() - 1}) {
    CAPTURE(byte, header);
    flip(files[1], byte);
    muonrt::Checkpoint checkpoint(folder.path());
    CHECK(muonrt_checkpoint_verify(checkpoint.get()) == kCorrupt);
    CHECK_THAT(muonrt_get_last_error(), Contains(files[1]));
    if (byte >= header)
      CHECK_THAT(muonrt_get_last_error(),
                 Contains("bytes 0 to " + std::to_string(whole.size() - header)) &&
                     Contains("momentum of param 'rows', elements 20 to 35"));
    REQUIRE(checkpoint.problems().size() == 1);
    // Reading any tensor that has elements in this file returns an error.
    std::vector<float> values(35);
    const int64_t index = checkpoint.find_tensor("rows", MUONRT_STATE_MOMENTUM);
    check_error(muonrt_checkpoint_read(values.data(), 4 * 35, checkpoint.get(), index), kCorrupt,
                {files[1]});
    flip(files[1], byte);
    checkpoint.verify();  // reads the files again
    CHECK(checkpoint.problems().empty());
  }
  // The first file is damaged and the second one is missing. verify() must report both.
  flip(files[0], content(files[0]).size() - 1);
  std::filesystem::rename(files[1], files[1] + ".moved");
  muonrt::Checkpoint checkpoint(folder.path());
  CHECK(muonrt_checkpoint_verify(checkpoint.get()) == MUONRT_ERROR_IO);
  CHECK_THAT(muonrt_get_last_error(), Contains(files[1]) && Contains("1 more problem"));
  REQUIRE(checkpoint.problems().size() == 2);
  CHECK_THAT(checkpoint.problems()[1], Contains(files[0]));
  std::filesystem::rename(files[1] + ".moved", files[1]);
  flip(files[0], content(files[0]).size() - 1);
  checkpoint.verify();

  std::filesystem::resize_file(files[1], whole.size() - 1);
  check_error(muonrt_checkpoint_verify(checkpoint.get()), kCorrupt, {files[1]});
  flip(manifest, content(manifest).size() / 2);
  muonrt_checkpoint_t* handle = checkpoint.get();
  check_error(muonrt_checkpoint_open(&handle, folder.path().c_str(), nullptr), kCorrupt,
              {manifest, "checksum"});
  CHECK(handle == nullptr);
}

TEST_CASE("checkpoint reader: each invalid argument is rejected", "[unit][abi][state]") {
  const test_support::Folder folder;
  save(folder.path(), 1, 1);
  const char* const path = folder.path().c_str();
  muonrt::Checkpoint checkpoint(folder.path());
  muonrt_checkpoint_t *const c = checkpoint.get(), *out = c;
  int64_t number = -5;
  char text[8] = "before";
  check_error(muonrt_checkpoint_open(nullptr, path, nullptr), kInvalid, {"checkpoint is NULL"});
  check_error(muonrt_checkpoint_open(&out, nullptr, nullptr), kInvalid, {"folder is NULL"});
  CHECK(out == nullptr);
  check_error(muonrt_checkpoint_open(&out, "", nullptr), kInvalid, {"folder is empty"});
  check_error(muonrt_checkpoint_open(&out, path, "../manifest.json"), kInvalid,
              {"manifest is '../manifest.json'"});
  check_error(muonrt_checkpoint_open(&out, path, "manifest-1.json"), MUONRT_ERROR_IO,
              {"manifest-1.json", "cannot be opened"});
  check_error(muonrt_checkpoint_list(text, -1, nullptr, path), kInvalid, {"capacity is -1"});
  check_error(muonrt_checkpoint_list(nullptr, 1, nullptr, path), kInvalid, {"buffer is NULL"});
  check_error(muonrt_checkpoint_list(text, 8, nullptr, nullptr), kInvalid, {"folder is NULL"});
  check_error(muonrt_checkpoint_list(text, 8, nullptr, ""), kInvalid, {"folder is empty"});
  check_error(muonrt_checkpoint_list(text, 8, nullptr, (folder.path() + "/no").c_str()),
              MUONRT_ERROR_IO, {"/no", "cannot be read"});
  CHECK(std::string(text) == "before");
  CHECK(muonrt_checkpoint_list(text, 8, &number, path) == MUONRT_OK);
  // The text is truncated to 8 bytes, including the terminating zero.
  CHECK(std::string(text) == "manifes");
  CHECK(number == 13);

  check_error(muonrt_checkpoint_get_info(nullptr, c), kInvalid, {"info is NULL"});
  muonrt_checkpoint_info_t info = {};
  check_error(muonrt_checkpoint_get_info(&info, c), kInvalid, {"struct_size is 0"});
  check_error(muonrt_checkpoint_get_tensor(nullptr, c, 0), kInvalid, {"tensor is NULL"});
  muonrt_checkpoint_tensor_t tensor = {};
  check_error(muonrt_checkpoint_get_tensor(&tensor, c, 0), kInvalid, {"struct_size is 0"});
  muonrt_checkpoint_tensor_init(&tensor);
  const int64_t count = checkpoint.info().n_tensors;
  for (const int64_t index : {int64_t{-1}, count, INT64_MAX, INT64_MIN}) {
    const std::string problem = "index is " + std::to_string(index);
    check_error(muonrt_checkpoint_get_tensor(&tensor, c, index), kInvalid, {problem});
    check_error(muonrt_checkpoint_read(text, 8, c, index), kInvalid, {problem});
  }
  CHECK(tensor.param == nullptr);
  number = -5;
  check_error(muonrt_checkpoint_find_tensor(nullptr, c, "rows", MUONRT_STATE_PARAM), kInvalid,
              {"index is NULL"});
  check_error(muonrt_checkpoint_find_tensor(&number, c, nullptr, MUONRT_STATE_PARAM), kInvalid,
              {"param is NULL"});
  check_error(muonrt_checkpoint_find_tensor(&number, c, "row", MUONRT_STATE_PARAM), kInvalid,
              {"no param 'row'"});
  check_error(muonrt_checkpoint_find_tensor(&number, c, "rows", MUONRT_STATE_VARIANCE), kInvalid,
              {"'rows' has no variance"});
  CHECK(number == -5);
  number = checkpoint.find_tensor("rows", MUONRT_STATE_MOMENTUM);
  std::vector<float> values(36, 7.0f);
  for (const int64_t bytes : {int64_t{0}, int64_t{139}, int64_t{144}})
    check_error(muonrt_checkpoint_read(values.data(), bytes, c, number), kInvalid,
                {"momentum of param 'rows' has 140 bytes", std::to_string(bytes)});
  check_error(muonrt_checkpoint_read(values.data(), -1, c, number), kInvalid, {"bytes is -1"});
  check_error(muonrt_checkpoint_read(nullptr, 140, c, number), kInvalid, {"data is NULL"});
  CHECK(values == std::vector<float>(36, 7.0f));
  CHECK(muonrt_checkpoint_read(nullptr, 0, c, checkpoint.find_tensor("none", MUONRT_STATE_PARAM)) ==
        MUONRT_OK);
}

namespace {

/// Calls every function of an open checkpoint and returns the statuses.
/// @param[out] said  Whether all error messages contain `text`.
std::vector<muonrt_status_t> calls_of(muonrt_checkpoint_t* c, const std::string& text, bool& said) {
  std::vector<muonrt_status_t> out;
  said = true;
  const auto note = [&](muonrt_status_t status) {
    out.push_back(status);
    said = said && std::string(muonrt_get_last_error()).find(text) != std::string::npos;
  };
  int64_t number = 0;
  note(muonrt_checkpoint_get_info(nullptr, c));
  note(muonrt_checkpoint_get_manifest(nullptr, 0, &number, c));
  note(muonrt_checkpoint_get_tensor(nullptr, c, 0));
  note(muonrt_checkpoint_find_tensor(&number, c, "w", MUONRT_STATE_MOMENTUM));
  note(muonrt_checkpoint_read(nullptr, 0, c, 0));
  note(muonrt_checkpoint_verify(c));
  note(muonrt_checkpoint_get_problems(nullptr, 0, &number, c));
  return out;
}

}  // namespace

TEST_CASE("checkpoint reader: an invalid handle is rejected", "[unit][abi][state]") {
  const test_support::Folder folder;
  save(folder.path(), 1, 1);
  muonrt_checkpoint_t* checkpoint = nullptr;
  REQUIRE(muonrt_checkpoint_open(&checkpoint, folder.path().c_str(), nullptr) == MUONRT_OK);
  CHECK(muonrt_checkpoint_verify(checkpoint) == MUONRT_OK);
  const std::vector<muonrt_status_t> all(7, kInvalid);
  bool said = false;
#if !defined(__SANITIZE_THREAD__)
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int wrong = 0;
    for (const muonrt_status_t s : calls_of(checkpoint, "was made by process", said))
      wrong |= s != MUONRT_ERROR_INVALID_STATE;
    muonrt_checkpoint_destroy(checkpoint);
    _exit(wrong | 2 * !said);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(muonrt_checkpoint_verify(checkpoint) == MUONRT_OK);
#endif
  muonrt_checkpoint_destroy(checkpoint);
  CHECK(calls_of(checkpoint, "checkpoint is a checkpoint that was destroyed before", said) == all);
  CHECK(said);
  muonrt_checkpoint_destroy(checkpoint);
  CHECK_THAT(muonrt_get_last_error(), Contains("muonrt_checkpoint_destroy: checkpoint is"));
  muonrt_checkpoint_destroy(nullptr);
  CHECK(calls_of(nullptr, "checkpoint is NULL", said) == all);
  CHECK(said);
  const muonrt::Comm comm = muonrt::Comm::self();
  auto* const other = reinterpret_cast<muonrt_checkpoint_t*>(comm.get());
  CHECK(calls_of(other, "checkpoint is a communicator; pass a checkpoint", said) == all);
  CHECK(said);
}
