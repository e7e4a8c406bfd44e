#include "cuda/nccl/nccl_api.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "comm/thread_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/nccl_setup.hpp"
#include "cuda/nccl/real_nccl.hpp"
#include "optimizer/agreement.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using transport_test::on_ranks;

namespace {

std::vector<std::optional<Error>> agree_on_setup(int size,
                                                 const std::function<NcclSetup(int)>& prepare) {
  ThreadGroup group(size);
  return on_ranks(size, [&](int rank) {
    const auto bootstrap = make_bootstrap(group.transport(rank));
    agree_on_nccl_setup(*bootstrap, [&] { return prepare(rank); });
  });
}

const std::string kStub = MUONRT_STUBS "/libmuonrt_stub_nccl.so";
const std::string kPart = MUONRT_STUBS "/libmuonrt_stub_nccl_part.so";  // has no ncclCommSplit

std::optional<Error> loading(const std::vector<std::string>& names) {
  std::vector<const char*> list;
  for (const std::string& name : names) list.push_back(name.c_str());
  return capture_error([&] { load_nccl(list.data(), static_cast<int>(list.size())); });
}

/// Loads NCCL in a process that has loaded the library `visible` globally. Returns the version or
/// the error. Each call uses a separate process, because the loader cannot undo a global load.
std::string load_with_global(const std::string& visible, const char* name) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string text = "it cannot be loaded globally";
    if (dlopen(visible.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      int version = 0;
      const auto error = capture_error([&] { load_nccl(&name, 1).get_version(&version); });
      text = error ? error->message() : cat("version ", version);
    }
    const bool written = write(ends[1], text.data(), text.size()) == std::ssize(text);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  char text[2048];
  std::string out;
  for (ssize_t n = 0; (n = read(ends[0], text, sizeof text)) > 0;)
    out.append(text, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return out;
}

bool says(const std::optional<Error>& error, Status status, const std::string& text) {
  return error && error->status() == status && error->message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("nccl api: the real library resolves, and makes ids without a driver", "[nccl]") {
  const NcclApi* const api = cuda_test::real_nccl();
  if (!api) {
    WARN("skipped: no NCCL library");
    return;
  }
  int version = 0;
  CHECK(api->get_version(&version) == kNcclSuccess);
  CHECK(version >= 21900);
  CHECK(nccl_version_text(22809) == "2.28.9");
  NcclUniqueId id{};
  CHECK(api->get_unique_id(&id) == kNcclSuccess);
  CHECK(std::string(id.internal, 128) != std::string(128, '\0'));
  CHECK(std::string(api->error_string(kNcclInvalidUsage)).size() > 3);
}

TEST_CASE("nccl api: an error names a library that is missing or is not a library", "[nccl]") {
  CHECK(says(loading({"libno-such-nccl.so.2"}), Status::kNotSupported, "NCCL cannot be loaded"));
  CHECK(says(loading({"libc.so.6"}), Status::kNotSupported,
             "libc.so.6 has no function ncclGetVersion (it is older than NCCL 2.19"));
}

TEST_CASE("nccl api: if all names are missing, the error contains each, the first one first",
          "[nccl]") {
  const auto error = loading({"libno-such-nccl.so.2", "/no/such/nccl", "libno-such-nccl.so"});
  REQUIRE(error);
  const std::string& text = error->message();
  CAPTURE(text);
  const size_t first = text.find("(libno-such-nccl.so.2: "),
               second = text.find("; /no/such/nccl: "), third = text.find("; libno-such-nccl.so: ");
  CHECK(first < second);
  CHECK(second < third);
  CHECK(third != std::string::npos);
}

TEST_CASE("nccl api: a file that exists and cannot be loaded is not skipped", "[nccl]") {
  const loopback::Folder folder;
  const std::string broken = folder.path() + "/libnccl.so.2";
  std::ofstream(broken) << "no library";
  const std::string next = folder.path() + "/next.so";
  std::filesystem::copy_file(kPart, next);
  const auto error = loading({broken, next});
  REQUIRE(error);
  INFO(error->message());
  CHECK(says(error, Status::kNotSupported, "NCCL cannot be loaded (" + broken + ": "));
  CHECK(error->message().find(next) == std::string::npos);
  // A file that does not exist is skipped.
  CHECK(says(loading({"libno-such-nccl.so.2", folder.path() + "/no-such", next}),
             Status::kNotSupported, next + " has no function ncclCommSplit"));
}

TEST_CASE("nccl api: a copy that was loaded globally is preferred, under any name", "[nccl]") {
  // Tests a name that does not exist, and a name under which a real library may exist.
  for (const char* const name : {"libno-such-nccl.so.2", "libnccl.so.2"}) {
    CHECK(load_with_global(kStub, name) == "version 23099");
    CHECK(load_with_global(kPart, name).find(kPart + " has no function ncclCommSplit") == 0);
  }
}

TEST_CASE("nccl setup: if versions differ, every rank reports the ranks of each", "[nccl]") {
  const auto nccl = agree_on_setup(4, [](int rank) {
    NcclSetup guest;
    guest.nccl_version = rank == 2 ? 22703 : 22809;
    return guest;
  });
  const auto library = agree_on_setup(3, [](int rank) {
    NcclSetup guest;
    guest.library_version = rank == 0 ? 10203 : 10100;
    return guest;
  });
  for (const auto& e : nccl)
    CHECK(says(e, Status::kMismatch,
               "versions of NCCL differ (2.27.3 on ranks [2]; 2.28.9 on ranks [0, 1, 3])"));
  for (const auto& e : library)
    CHECK(says(e, Status::kMismatch,
               "versions of muonrt differ (1.1.0 on ranks [1, 2]; 1.2.3 on ranks [0])"));
}

TEST_CASE("nccl setup: every rank reports the rank that cannot take part", "[nccl]") {
  const auto errors = agree_on_setup(3, [](int rank) {
    if (rank == 1) throw Error(Status::kNotSupported, "no NCCL here");
    return NcclSetup();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kNotSupported, "rank 1: no NCCL here"));
}
