// Tests how ranks connect: at the address of rank 0, and in a folder that other users may write to
// and that contains files from earlier runs.
#include "comm/tcp/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <future>

#include "comm/tcp/handshake.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

std::string free_address() { return loopback::at_port(loopback::free_port()); }

/// Returns the configuration of a rank.
/// @param address  The address of rank 0, or the path of a folder.
Rendezvous config(const std::string& address, int rank, int size,
                  const std::string& secret = kSecret) {
  return {rank, size, address, secret, 100, {}, {}, "run-1"};
}

void connect_rank(const Rendezvous& m, int64_t timeout_ms = kLong) {
  const auto rendezvous = m.address[0] == '/' ? rendezvous_in_folder : rendezvous_at_address;
  rendezvous(m, Deadline::in_ms(timeout_ms));
}

std::optional<Error> connect_error(const Rendezvous& m, int64_t timeout_ms = kLong) {
  return error_of([&] { connect_rank(m, timeout_ms); });
}

/// Starts a rank on another thread. The future returns its error.
std::future<std::optional<Error>> start_rank(const Rendezvous& m, int64_t timeout_ms = kLong) {
  return std::async(std::launch::async, connect_error, m, timeout_ms);
}

/// A connection to rank 0 that is controlled by the test.
struct Visitor : Dial {
  explicit Visitor(const std::string& address) {
    const Deadline deadline = Deadline::in_ms(kLong);
    while (state == State::kUnreachable && !deadline.passed()) {  // rank 0 may not listen yet
      Dial::operator=(Dial(resolve(address)[0], {}));
      wait_while(State::kConnecting);
    }
  }
  void wait_while(State what) {
    while (state == what && wait_for(socket.fd(), events(), Deadline::in_ms(kLong)))
      advance(kSecret);
  }
  bool greeted() {
    wait_while(State::kConnected);
    return state == State::kGreeted;
  }
  void claims(int rank, int size, int version = 100, uint16_t wire = kProtocolVersion) {
    Claim mine{.rank = rank, .size = size, .version = version, .wire = wire};
    mine.nonce = fresh_nonce();
    if (greeted()) send_claim(kSecret, mine);
  }
  /// Returns the status and the text of rank 0's answer, or "" if rank 0 closes the connection.
  std::string text() {
    wait_while(State::kClaimed);
    if (state != State::kAnswered) return "";
    return cat(status_name(static_cast<Status>(answer.status)), " ", answer.message.data());
  }
};

/// A shared folder, and the file that rank 0 writes there.
struct Shared {
  const loopback::Folder folder;
  const std::string file = folder.path() + "/run-1";

  Rendezvous rank(int rank, int size = 2, const std::string& secret = "") const {
    return config(folder.path(), rank, size, secret);
  }
  void write(const std::string& content) const { std::ofstream(file, std::ios::binary) << content; }
};

/// Returns the content of the file that rank 0 writes, which only the user may read.
std::string file_of_rank_0(const Rendezvous& m) {
  const std::string file = m.address + '/' + m.run_id;
  std::string out;
  const auto rank_0 = start_rank(m, 1000);
  for (const Deadline deadline = Deadline::in_ms(kLong); out.empty() && !deadline.passed();) {
    std::ifstream content(file, std::ios::binary);
    out.assign(std::istreambuf_iterator<char>(content), {});
  }
  CHECK(fs::status(file).permissions() == fs::perms(0600));
  rank_0.wait();
  CHECK(out.size() > 72);
  return out;
}

}  // namespace

TEST_CASE("rendezvous: only the rank with another secret is rejected", "[unit][rendezvous]") {
  const std::string address = free_address();
  const auto errors = on_ranks(3, [&](int rank) {
    const char* const secret = rank == 2 ? "another secret altogether" : kSecret;
    connect_rank(config(address, rank, 3, secret), 2000);
  });
  CHECK(is_error(errors[2], Status::kComm, "without an answer, as it does if the secrets differ"));
  CHECK(is_error(errors[0], Status::kTimeout, "rank 2 of 3 did not connect"));
  CHECK(is_error(errors[0], Status::kTimeout, "its secret differs"));
  CHECK(is_error(errors[1], Status::kTimeout, "rendezvous at"));
}

TEST_CASE("rendezvous: the error says if rank 0's address is only local", "[unit][rendezvous]") {
  for (const auto& [host, local] :
       {std::pair{"127.0.1.1", true}, {"127.0.0.1", true}, {"0.0.0.0", false}}) {
    INFO(host);
    const std::string address = cat(host, ":", loopback::free_port());
    const auto error = connect_error(config(address, 0, 2), 100);
    CHECK(is_error(error, Status::kTimeout,
                   cat("listens at ", address, ": rank 1 of 2 did not connect")));
    CHECK(is_error(error, Status::kTimeout, "only this machine can connect to that address") ==
          local);
  }
}

TEST_CASE("rendezvous: a server that does not know the secret is rejected", "[unit][rendezvous]") {
  const auto against = [](const std::string& greeting, bool answer, int64_t timeout_ms = kLong) {
    const Socket listener = std::move(listen_at(resolve("127.0.0.1:0"))[0]);
    return on_ranks(2, [&](int rank) {
      if (rank == 1) return connect_rank(config(address_of(listener).text(), 1, 2), timeout_ms);
      wait_for(listener.fd(), POLLIN, Deadline::in_ms(kLong));
      const Socket connection([&] { return accept(listener.fd(), nullptr, nullptr); });
      send(connection.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      Claim claim;
      recv(connection.fd(), &claim, sizeof claim, 0);
      if (!answer) return;
      Answer accepted = make_answer(Status::kOk, "");
      accepted.proof = proof_of("guessed", Nonce{}, claim.nonce, accepted);
      send(connection.fd(), &accepted, sizeof accepted, MSG_NOSIGNAL);
    })[1];
  };
  CHECK(is_error(against(std::string(64, 'x'), false), Status::kComm, "not muonrt"));
  const std::string greeting(bytes_of(Greeting()));
  CHECK(is_error(against(greeting, true), Status::kComm, "different secrets"));
  // The next attempt gets no answer, so the rank returns after its timeout.
  CHECK(is_error(against(greeting, false, 1000), Status::kTimeout,
                 "1 times without an answer (last: the connection was closed)"));
}

TEST_CASE("rendezvous: a proof is for one secret, one claim, one greeting", "[unit][rendezvous]") {
  const Nonce greeted = fresh_nonce();
  CHECK(greeted != fresh_nonce());
  Claim claim{.rank = 1, .size = 3, .version = 100, .nonce = fresh_nonce()};
  const Digest proof = proof_of("secret", greeted, claim);
  CHECK(proof == proof_of("secret", greeted, claim));
  // HMAC pads keys with zeros, so keys that differ only in final zeros could give equal proofs.
  const std::string zeros(70, '\0');
  for (const std::string& other :
       {std::string("Secret"), "secret" + zeros.substr(0, 1), "secret" + zeros})
    CHECK(proof != proof_of(other, greeted, claim));
  CHECK(proof_of(zeros.substr(0, 63), {}, claim) != proof_of(zeros.substr(0, 64), {}, claim));
  CHECK(proof != proof_of("secret", fresh_nonce(), claim));
  claim.rank = 2;
  CHECK(proof != proof_of("secret", greeted, claim));
}

TEST_CASE("rendezvous: an error names the argument or limit that causes it", "[unit][rendezvous]") {
  const auto check = [](const char* text, auto Rendezvous::*field, const auto& value) {
    Rendezvous m = config(free_address(), 0, 2);
    m.*field = value;
    CHECK_THAT(text_of({connect_error(m, 100)}), Catch::Contains(text));
  };
  check("the ports are 5 to 3", &Rendezvous::ports, PortRange{5, 3});
  check("the ports are 1 to 65536", &Rendezvous::ports, PortRange{1, 65536});
  check("rank 2 of 2", &Rendezvous::rank, 2);
  check("'nowhere0' does not exist on this machine", &Rendezvous::interface, "nowhere0");
  check("cannot listen at 192.0.2.1", &Rendezvous::address, "192.0.2.1:4567");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{200, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto error = connect_error(config(loopback::at_port(1), 7, 300));
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(is_error(error, Status::kComm, "rank 7 of 300 may need 3"));
  CHECK(is_error(error, Status::kComm, "the limit of this process is 200; raise it to"));
}

TEST_CASE("rendezvous: a name may be unknown at first, but not invalid", "[unit][rendezvous]") {
  CHECK(is_error(connect_error(config(free_address(), 1, 2), 100), Status::kTimeout,
                 "found no rank 0"));
  const std::string name(70, 'n');  // longer than names can be, so no name server is queried
  CHECK(is_error(connect_error(config(name + ":1234", 1, 2), 100), Status::kTimeout,
                 cat("host '", name, "' cannot be resolved")));
  for (const char* wrong :
       {"256.1.1.1:80", "[]:80", "[rank0]:80", " rank0:80", "tcp://rank0:80", "rank0:", "rank0:0",
        "rank0:70000", "rank0:http", "", "rank0", ":80", "fd00::x:80"})
    CHECK(is_error(connect_error(config(wrong, 1, 2)), Status::kInvalidArgument, "rendezvous: "));
}

TEST_CASE("rendezvous: an interrupt ends the wait of every rank at once", "[unit][rendezvous]") {
  const std::string address = free_address();
  const auto begin = Deadline::Clock::now();
  const auto errors = on_ranks(3, [&](int rank) {
    // Rank 2 searches for rank 0 where no process listens. Rank 1 is not interrupted itself.
    Rendezvous m = config(rank == 2 ? loopback::at_port(1) : address, rank, 3);
    if (rank != 1)
      m.check_interrupt = [&] {
        if (seconds_since(begin) > 0.3) throw Error(Status::kAborted, "interrupted");
      };
    connect_rank(m);
  });
  for (const auto& error : errors) CHECK(is_error(error, Status::kAborted, "interrupted"));
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("rendezvous: rank 0 accepts 299 ranks that connect at once", "[unit][rendezvous]") {
  constexpr int kSize = 300;
  const std::string address = free_address();
  auto rank_0 = start_rank(config(address, 0, kSize));
  // More ranks than unauthenticated connections may wait connect before the first claim.
  std::vector<Visitor> ranks;
  int greeted = 0, accepted = 0;
  for (int r = 1; r < kSize; ++r) ranks.emplace_back(address);
  for (Visitor& v : ranks) greeted += v.greeted();
  for (int r = 1; r < kSize; ++r) ranks[static_cast<size_t>(r - 1)].claims(r, kSize);
  for (Visitor& v : ranks) accepted += v.text() == "MUONRT_OK ";
  if (accepted < kSize - 1) Visitor(address).claims(1, kSize + 1);  // ends the rendezvous
  CHECK(greeted == kSize - 1);
  CHECK(accepted == kSize - 1);
  CHECK(text_of({rank_0.get()}) == "");
}

TEST_CASE("rendezvous: a rank that does not fit ends it on every rank", "[unit][rendezvous]") {
  struct Row {
    int rank, size, version;
    std::string text;
    uint16_t wire = kProtocolVersion;
  };
  for (const Row& row :
       {Row{-5, 4, 100, "a process has rank -5, but must have a rank from 1 to 3"},
        Row{0, 4, 100, "a process has rank 0, but must have a rank from 1 to 3"},
        Row{4, 4, 100, "a process has rank 4, but must have a rank from 1 to 3"},
        Row{1, 4, 100, "two processes have rank 1"},
        Row{2, 5, 100, "size is 5 on rank 2, but 4 on rank 0"},
        Row{2, 4, 101, "rank 2 runs version 101 of muonrt, but rank 0 runs version 100"},
        Row{2, 4, 100, cat("the protocol version is 1 on rank 2, but ", kProtocolVersion), 1}}) {
    CAPTURE(row.text);
    const std::string address = free_address();
    auto rank_0 = start_rank(config(address, 0, 4));
    Visitor first(address), misfit(address);
    first.claims(1, 4);
    misfit.claims(row.rank, row.size, row.version, row.wire);
    std::vector answers = {first.text(), misfit.text()};
    for (const int rank : {2, 3}) {
      if (rank == row.rank) continue;
      Visitor late(address);
      late.claims(rank, 4);
      answers.push_back(late.text());
    }
    for (const std::string& answer : answers)
      CHECK_THAT(answer, Catch::StartsWith("MUONRT_ERROR_MISMATCH ") && Catch::Contains(row.text));
    CHECK(is_error(rank_0.get(), Status::kMismatch, row.text));
  }
}

TEST_CASE("rendezvous: all ranks learn that rank 0 has too few open files", "[unit][rendezvous]") {
  constexpr int kSize = 30;
  const std::string address = free_address();
  const pid_t child = fork();  // the limit applies to a whole process
  REQUIRE(child >= 0);
  if (child == 0) {
    const Socket next([&] { return open("/dev/null", O_RDONLY); });
    const auto limit = static_cast<rlim_t>(next.fd() + 12);
    const rlimit few{limit, limit};
    setrlimit(RLIMIT_NOFILE, &few);
    const auto error = error_of([&] {  // skips the check of the limit on open files
      accept_all_ranks(config(address, 0, kSize), listen_at(resolve(address)),
                       Deadline::in_ms(kLong));
    });
    _exit(is_error(error, Status::kComm, "") ? 0 : 1);
  }
  std::vector<Visitor> ranks;
  int answered = 0, status = 0;
  for (int r = 1; r < kSize; ++r) ranks.emplace_back(address).claims(r, kSize);
  for (Visitor& v : ranks)
    answered += v.text().find("raise the limit of open files") != std::string::npos;
  waitpid(child, &status, 0);
  CHECK(answered == kSize - 1);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("folder rendezvous: errors name missing ranks, folders and run ids", "[unit][folder]") {
  const Shared shared;
  const auto missing = connect_error(shared.rank(0, 3), 200);
  CHECK(is_error(missing, Status::kTimeout, "ranks 1, 2 of 3 did not connect"));
  CHECK(is_error(missing, Status::kTimeout, shared.file));
  Rendezvous m = shared.rank(1, 3);
  CHECK(is_error(connect_error(m, 200), Status::kTimeout,
                 cat("rank 1 found no rank 0 at ", shared.file,
                     " before the timeout (rank 0 has not created the file)")));
  for (const char* id : {"", "a/b", "..", "with space"}) {
    m.run_id = id;
    CHECK(is_error(connect_error(m), Status::kInvalidArgument, "run_id"));
  }
  const std::string nowhere = shared.folder.path() + "/nowhere";
  for (const int rank : {0, 1})
    CHECK(is_error(connect_error(config(nowhere, rank, 2, "")), Status::kIo,
                   "/nowhere cannot be opened"));
  CHECK(fs::is_empty(shared.folder.path()));
}

TEST_CASE("folder rendezvous: a file of another run or user is rejected", "[unit][folder]") {
  const Shared shared;
  shared.write(file_of_rank_0(shared.rank(0)));
  CHECK(is_error(connect_error(shared.rank(0)), Status::kInvalidState,
                 "run-1 already exists, from an earlier run"));
  CHECK(is_error(connect_error(shared.rank(1), 300), Status::kTimeout,
                 "delete that file if it is from an earlier run"));
  // Another run_id is another run. Its ranks wait for rank 0, and leave no file.
  for (const char* secret : {"", kSecret}) {
    const auto errors = on_ranks(3, [&](int rank) {
      Rendezvous m = shared.rank(rank, 3, secret);
      m.run_id = "run-2";
      if (rank == 0) usleep(100'000);
      connect_rank(m);
    });
    CHECK(text_of(errors) == "");
    CHECK(std::distance(fs::directory_iterator(shared.folder.path()), {}) == 1);
  }
  const uid_t other = geteuid() + 1;  // is only rejected if the run has no secret
  if (chown(shared.file.c_str(), other, static_cast<gid_t>(-1)) == 0)
    CHECK(is_error(connect_error(shared.rank(1), 200), Status::kInvalidState,
                   cat("belongs to user ", other)));
  else
    WARN("not checked: only root may change the owner of a file");
}

TEST_CASE("folder rendezvous: a rank only accepts a file of its rank 0", "[unit][folder]") {
  const Shared shared;
  Rendezvous rank_0 = shared.rank(0, 2, kSecret);
  const std::string content = file_of_rank_0(rank_0);
  rank_0.run_id = "run-2";
  const std::string of_other_run = file_of_rank_0(rank_0);
  std::string changed = content;
  changed.back() = 'x';
  struct Row {
    std::string content;
    Status status;
    const char* text;
    const char* secret = kSecret;
  };
  for (const Row& row :
       {Row{content, Status::kComm, "rank 0 and rank 1 have different secrets", "another secret"},
        Row{content, Status::kComm, "rank 0 and rank 1 have different secrets", ""},
        Row{of_other_run, Status::kComm, "is from an earlier run"},
        Row{content.substr(0, content.size() - 1), Status::kComm, "different secrets"},
        Row{changed, Status::kComm, "different secrets"},
        Row{content.substr(0, 20), Status::kCorrupt, "run-1 was not written by rank 0"},
        Row{std::string(200, 'x'), Status::kCorrupt, "run-1 was not written by rank 0"}}) {
    shared.write(row.content);
    CHECK(is_error(connect_error(shared.rank(1, 2, row.secret)), row.status, row.text));
  }
  fs::remove(shared.file);
  const auto error = [&] { return connect_error(shared.rank(1, 2, kSecret)); };
  fs::create_symlink("/dev/zero", shared.file);
  CHECK(is_error(error(), Status::kIo, "run-1 cannot be opened"));
  fs::remove(shared.file);
  fs::create_directory(shared.file);
  CHECK(is_error(error(), Status::kCorrupt, "run-1 is not a regular file"));
  fs::remove(shared.file);
  shared.write("x");
  fs::resize_file(shared.file, size_t{1} << 40);
  CHECK(is_error(error(), Status::kCorrupt, "has 1099511627776 bytes"));
}
