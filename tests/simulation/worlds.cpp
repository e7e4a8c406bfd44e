#include "simulation/worlds.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "comm/tcp/handshake.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/thread_transport.hpp"
#include "simulation/network.hpp"
#include "simulation/ranks.hpp"

namespace simulation {

using muonrt::cat;

namespace {

constexpr const char* kSecret = "the secret of all ranks of a world";

void run_threads(const Plan& plan) {
  muonrt::ThreadGroup group(plan.size);
  std::vector<std::unique_ptr<RankRun>> ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.size; ++rank) {
    ranks.push_back(std::make_unique<RankRun>(plan, rank, [](const Fault&) {}));
    threads.emplace_back([&, rank] {
      ranks[static_cast<size_t>(rank)]->run([&] { return group.transport(rank); });
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& rank : ranks) rank->check_buffers();
}

/// Returns bytes that a process without the secret sends: random bytes, recorded bytes, or a claim
/// of a rank with a wrong proof.
std::string made_up(Network& network, int to, int size) {
  Random& random = Scheduler::get().random();
  if (!network.heard().empty() && random.one_in(3)) return random.one_of(network.heard());
  if (random.one_in(2)) {
    const muonrt::Claim claim{.rank = static_cast<int32_t>(random.between(0, size)),
                              .size = size,
                              .to = to,
                              .nonce = muonrt::fresh_nonce()};
    return {reinterpret_cast<const char*>(&claim), sizeof claim};
  }
  std::string bytes(static_cast<size_t>(random.any_size(3000)), '\0');
  for (char& c : bytes) c = static_cast<char>(random.next());
  return bytes;
}

/// Simulates a process that does not know the secret. The process must not receive anything except
/// greetings.
void disturb(Network& network, int size) {
  Scheduler& s = Scheduler::get();
  for (int64_t tries = s.random().between(1, 4); tries > 0; --tries) {
    s.sleep_until(s.now() + s.random().any_size(2 * kSecond));
    const auto targets = network.listening();
    if (targets.empty()) continue;
    const Address target = s.random().one_of(targets);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(target.host);
    to.sin_port = htons(target.port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    pollfd one{fd, POLLOUT, 0};
    poll(&one, 1, 3000);
    ssize_t received = 0;
    for (int64_t k = s.random().below(4); k > 0; --k) {
      const int rank = static_cast<int>(target.host - Network::host_of(0));
      const std::string bytes = made_up(network, rank, size);
      send(fd, bytes.data(), bytes.size(), 0);
      one.events = POLLIN;
      poll(&one, 1, static_cast<int>(s.random().any_size(2000)));
      char in[256];
      received += std::max<ssize_t>(0, recv(fd, in, sizeof in, MSG_DONTWAIT));
    }
    if (received > ssize_t{sizeof(muonrt::Greeting)})
      s.fail("a process without the secret received an answer");
    s.sleep_until(s.now() + s.random().any_size(20 * kSecond));
    close(fd);
  }
}

/// Starts a process with one thread.
int start(int process, std::function<void()> body) {
  const auto run = [](void* function) -> void* {
    const std::unique_ptr<std::function<void()>> owner(
        static_cast<std::function<void()>*>(function));
    (*owner)();
    return nullptr;
  };
  return Scheduler::get().spawn(process, run, new std::function<void()>(std::move(body)));
}

void run_rank(const Plan& plan, Network& network, RankRun& rank, int number) {
  rank.run([&] {
    const muonrt::Rendezvous rendezvous{.rank = number,
                                        .size = plan.size,
                                        .address = plan.in_folder ? "." : "10.0.0.1:5000",
                                        .secret = kSecret,
                                        .run_id = plan.in_folder ? "run" : ""};
    const auto connect =
        plan.in_folder ? muonrt::rendezvous_in_folder : muonrt::rendezvous_at_address;
    return muonrt::make_tcp_transport(
        connect(rendezvous, muonrt::Deadline::in_ms(plan.connect_timeout_ms())));
  });
  Scheduler& s = Scheduler::get();
  if (const int open = network.open_of(number))
    s.fail(cat("rank ", number, " leaves ", open, " descriptors open"));
  if (const int fibers = s.fibers_of(number); fibers != 1)
    s.fail(cat("rank ", number, " leaves ", fibers - 1, " threads"));
}

void run_tcp(const Plan& plan, Network& network) {
  Scheduler& s = Scheduler::get();
  // Killed ranks do not destroy their communicators, so these objects are not destroyed either.
  std::vector<std::unique_ptr<RankRun>> ranks;
  std::vector<bool> killed(static_cast<size_t>(plan.size));
  std::vector<int> fibers;
  const auto strike = [&](const Fault& f) {
    switch (f.kind) {
      case Fault::Kind::kKill:
      case Fault::Kind::kMachineDies:
        return s.at_step(f.rank, f.calls + 1, [&, f] {
          killed[static_cast<size_t>(f.rank)] = true;
          network.kill(f.rank, f.kind == Fault::Kind::kMachineDies);
        });
      case Fault::Kind::kDisconnect:
        return s.after(f.delay, [&, f] { network.reset_one(f.rank); });
      case Fault::Kind::kPartition:
        return network.isolate(f.rank, s.now() + f.delay);
      case Fault::Kind::kFlip:
        return network.flip_one(f.rank);
      default:
        return;
    }
  };
  for (int rank = 0; rank < plan.size; ++rank) {
    ranks.push_back(std::make_unique<RankRun>(plan, rank, strike));
    fibers.push_back(start(
        rank, [&, rank] { run_rank(plan, network, *ranks[static_cast<size_t>(rank)], rank); }));
  }
  for (int k = 0; k < plan.weather.unauthenticated; ++k)
    fibers.push_back(start(plan.size + 1 + k, [&] { disturb(network, plan.size); }));
  for (const int fiber : fibers) s.join(fiber);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (killed[rank])
      (void)ranks[rank].release();
    else
      ranks[rank]->check_buffers();
  }
}

}  // namespace

Result run_world(uint64_t seed, bool tcp, bool prints) {
  const Plan plan(seed, tcp);
  if (prints) std::printf("%s\n", plan.text().c_str());
  Scheduler scheduler(seed ^ 0x5ced, prints);
  Result out;
  if (plan.in_folder)  // killed ranks leave files
    for (const auto& file : std::filesystem::directory_iterator(".")) remove(file.path());
  if (tcp) {
    Network network(scheduler, plan.weather, plan.size + 1 + plan.weather.unauthenticated);
    out.problem = scheduler.run(plan.size, [&] { run_tcp(plan, network); });
  } else {
    out.problem = scheduler.run(0, [&] { run_threads(plan); });
  }
  out.log_hash = scheduler.log_hash();
  out.steps = scheduler.steps();
  return out;
}

}  // namespace simulation
