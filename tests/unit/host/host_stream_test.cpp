#include <catch2/catch.hpp>
#include <new>
#include <stdexcept>
#include <thread>

#include "host_fixture.hpp"

using namespace muonrt;
using host::Task;
using host_test::Gate;

namespace {

constexpr StreamKind kKinds[] = {StreamKind::kCompute, StreamKind::kComm,
                                 StreamKind::kCommOnCaller};

template <class F>
void enqueue(Stream& stream, F f) {
  host::host_stream(stream).enqueue(Task(f));
}

void synchronize(Device& device, Stream& stream) {
  const auto event = device.create_event();
  device.record(*event, stream);
  device.synchronize(*event, Deadline::in_ms(60000));
}

}  // namespace

TEST_CASE("host stream: tasks run one after the other in the order in which they were enqueued",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  for (const StreamKind kind : kKinds) {
    const auto stream = device->create_stream(kind);
    std::vector<int> seen;
    seen.reserve(2000);
    auto* list = &seen;
    for (int i = 0; i < 2000; ++i) enqueue(*stream, [=] { list->push_back(i); });
    synchronize(*device, *stream);
    REQUIRE(seen.size() == 2000);
    for (int i = 0; i < 2000; ++i) REQUIRE(seen[static_cast<size_t>(i)] == i);
  }
}

TEST_CASE(
    "host event: work after a wait sees the work before the record, even of destroyed streams",
    "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  enum Later { kNothing, kRecordedElsewhere, kDestroyed };
  for (const StreamKind from : kKinds) {
    for (const StreamKind to : kKinds) {
      for (const Later later : {kNothing, kRecordedElsewhere, kDestroyed}) {
        // If this thread waited for the third stream, it would run the caller's tasks and block at
        // the gate.
        if (later == kRecordedElsewhere && from == StreamKind::kCommOnCaller) continue;
        const auto first = device->create_stream(from), second = device->create_stream(to);
        const auto third = device->create_stream(StreamKind::kComm);
        auto event = device->create_event();
        Gate gate;
        int written = 0, read = -1;
        int *w = &written, *r = &read;
        auto* g = &gate;
        enqueue(*first, [=] {
          g->pass();
          *w = 7;
        });
        device->record(*event, *first);
        device->wait(*second, *event);
        if (later == kRecordedElsewhere) {
          device->record(*event, *third);  // is complete immediately
          device->synchronize(*event, Deadline::in_ms(60000));
        }
        if (later == kDestroyed) event.reset();
        enqueue(*second, [=] { *r = *w; });
        gate.open();
        synchronize(*device, *second);
        REQUIRE(read == 7);
        synchronize(*device, *first);
      }
    }
  }
}

TEST_CASE("host event: a wait uses the recording that was current when it was enqueued",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  const auto a = device->create_stream(StreamKind::kCompute);
  const auto b = device->create_stream(StreamKind::kComm);
  const auto event = device->create_event();
  Gate gate;
  auto* g = &gate;
  enqueue(*a, [] {});
  device->record(*event, *a);
  device->wait(*b, *event);
  enqueue(*a, [=] { g->pass(); });
  device->record(*event, *a);  // is not complete until the gate opens
  int ran = 0;
  auto* r = &ran;
  enqueue(*b, [=] { *r = 1; });
  synchronize(*device, *b);
  REQUIRE(ran == 1);

  device->wait(*b, *event);
  enqueue(*b, [=] { *r = 2; });
  const auto late = device->create_event();
  device->record(*late, *b);
  REQUIRE_THROWS_AS(device->synchronize(*late, Deadline::in_ms(20)), Error);
  REQUIRE(ran == 1);
  gate.open();
  device->synchronize(*late, Deadline::in_ms(60000));
  REQUIRE(ran == 2);
}

TEST_CASE("host event: a wait for an event that was never recorded returns", "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  const auto stream = device->create_stream(StreamKind::kCompute);
  const auto event = device->create_event();
  device->wait(*stream, *event);
  device->synchronize(*event, Deadline::in_ms(0));
  synchronize(*device, *stream);
}

TEST_CASE("host stream: synchronize throws TIMEOUT after its deadline", "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kComm}) {
    const auto stream = device->create_stream(kind);
    const auto event = device->create_event();
    Gate gate;
    auto* g = &gate;
    enqueue(*stream, [=] { g->pass(); });
    device->record(*event, *stream);
    try {
      device->synchronize(*event, Deadline::in_ms(10));
      FAIL("no error");
    } catch (const Error& error) {
      REQUIRE(error.status() == Status::kTimeout);
    }
    gate.open();
    device->synchronize(*event, Deadline::in_ms(60000));
    REQUIRE_FALSE(device->error());
  }
}

TEST_CASE("host stream: the caller's thread runs work of kCommOnCaller only in synchronize",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  const auto compute = device->create_stream(StreamKind::kCompute);
  const auto comm = device->create_stream(StreamKind::kCommOnCaller);
  const auto packed = device->create_event(), arrived = device->create_event(),
             done = device->create_event();
  // The work alternates three times between a compute stream and a communication stream.
  std::vector<std::thread::id> ran_on(6);
  auto* ids = &ran_on;
  for (size_t i = 0; i < 6; i += 2) {
    enqueue(*compute, [=] { (*ids)[i] = std::this_thread::get_id(); });
    device->record(*packed, *compute);
    device->wait(*comm, *packed);
    enqueue(*comm, [=] { (*ids)[i + 1] = std::this_thread::get_id(); });
    device->record(*arrived, *comm);
    device->wait(*compute, *arrived);
  }
  device->record(*done, *compute);
  REQUIRE_THROWS_AS(device->synchronize(*done, Deadline::in_ms(0)), Error);
  REQUIRE(ran_on[1] == std::thread::id());
  device->synchronize(*done, Deadline::in_ms(60000));
  for (size_t i = 0; i < 6; ++i) {
    REQUIRE(ran_on[i] != std::thread::id());
    REQUIRE((ran_on[i] == std::this_thread::get_id()) == (i % 2 == 1));
  }
}

TEST_CASE("host stream: two kCommOnCaller streams that wait for each other both finish",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  const auto a = device->create_stream(StreamKind::kCommOnCaller);
  const auto b = device->create_stream(StreamKind::kCommOnCaller);
  const auto from_a = device->create_event(), from_b = device->create_event();
  std::vector<int> order;
  auto* list = &order;
  enqueue(*b, [=] { list->push_back(1); });
  device->record(*from_b, *b);
  device->wait(*a, *from_b);
  enqueue(*a, [=] { list->push_back(2); });
  device->record(*from_a, *a);
  device->wait(*b, *from_a);
  enqueue(*b, [=] { list->push_back(3); });
  synchronize(*device, *b);
  REQUIRE(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("host stream: the first error is kept, the stream skips work but completes its events",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  for (const StreamKind kind : kKinds) {
    const auto bad = device->create_stream(kind), good = device->create_stream(StreamKind::kComm);
    int ran = 0;
    auto* r = &ran;
    enqueue(*bad, [=] { *r += 1; });
    enqueue(*bad, [] { throw Error(Status::kComm, "peer 3 has ended"); });
    enqueue(*bad, [=] { *r += 10; });
    const auto event = device->create_event();
    device->record(*event, *bad);
    device->wait(*good, *event);
    enqueue(*good, [=] { *r += 100; });
    enqueue(*good, [] { throw Error(Status::kDevice, "later"); });
    synchronize(*device, *good);
    REQUIRE(ran == 101);
    REQUIRE(device->error()->status() == Status::kComm);
    REQUIRE(device->error()->message() == "peer 3 has ended");

    device->clear_error();
    REQUIRE_FALSE(device->error());
    enqueue(*bad, [=] { *r += 1000; });
    synchronize(*device, *bad);
    enqueue(*good, [=] { *r += 10000; });
    synchronize(*device, *good);
    REQUIRE(ran == 11101);
  }
}

TEST_CASE("host stream: every exception of a task becomes an error", "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  const auto stream = device->create_stream(StreamKind::kCompute);
  const auto status_after = [&](auto task) {
    enqueue(*stream, task);
    synchronize(*device, *stream);
    const auto error = device->error();
    device->clear_error();
    return error ? error->status() : Status::kOk;
  };
  REQUIRE(status_after([] {}) == Status::kOk);
  REQUIRE(status_after([] { throw Error(Status::kAborted, "a"); }) == Status::kAborted);
  REQUIRE(status_after([] { throw std::runtime_error("b"); }) == Status::kInternal);
  REQUIRE(status_after([] { throw std::bad_alloc(); }) == Status::kOutOfMemory);
  REQUIRE(status_after([] { throw 5; }) == Status::kInternal);
}

TEST_CASE("host stream: destroying a stream drops pending work, even if it waits for a blocked one",
          "[unit][host][tsan]") {
  const auto device = host::make_host_device({});
  for (const StreamKind kind : kKinds) {
    const auto stuck = device->create_stream(StreamKind::kCompute);
    const auto after = device->create_stream(StreamKind::kComm);
    auto dropped = device->create_stream(kind);
    const auto event = device->create_event();
    Gate gate;
    auto* g = &gate;
    int ran = 0;
    auto* r = &ran;
    enqueue(*stuck, [=] { g->pass(); });
    device->record(*event, *stuck);
    device->wait(*dropped, *event);
    enqueue(*dropped, [=] { *r += 1; });
    device->record(*event, *dropped);
    device->wait(*after, *event);
    // This task does not run, because the stream that it waits for was destroyed.
    enqueue(*after, [=] { *r += 10; });
    dropped.reset();
    synchronize(*device, *after);
    device->synchronize(*event, Deadline::in_ms(0));
    gate.open();
    synchronize(*device, *stuck);
    REQUIRE(ran == 0);
    REQUIRE(device->error()->status() == Status::kAborted);
    device->clear_error();
  }
}

TEST_CASE("host stream: queues stop growing after the longest step", "[unit][host][tsan]") {
  host::HostDevice device({});
  const auto a = device.create_stream(StreamKind::kCompute);
  const auto b = device.create_stream(StreamKind::kCommOnCaller);
  const auto event = device.create_event(), done = device.create_event();
  int64_t sum = 0;
  auto* s = &sum;
  const auto step = [&] {
    Gate gate;
    auto* g = &gate;
    enqueue(*a, [=] { g->pass(); });
    for (int i = 0; i < 1000; ++i) {
      device.record(*event, *a);
      device.wait(*b, *event);
      enqueue(*b, [=] { ++*s; });
      device.record(*event, *b);
      device.wait(*a, *event);
      enqueue(*a, [=] { ++*s; });
    }
    gate.open();
    device.record(*done, *a);
    device.synchronize(*done, Deadline::in_ms(60000));
  };
  step();
  const int64_t growths = device.queue_growths();
  REQUIRE(growths > 0);
  for (int i = 0; i < 3; ++i) step();
  REQUIRE(device.queue_growths() == growths);
  REQUIRE(sum == 8000);
}

TEST_CASE("host stream: timestamps follow the order of work", "[unit][host]") {
  host_test::OnHost host;
  int64_t at[3] = {};
  for (int64_t& each : at) host.device->timestamp(*host.stream, &each);
  host.finish();
  REQUIRE(at[0] > 0);
  REQUIRE(at[0] <= at[1]);
  REQUIRE(at[1] <= at[2]);
}

TEST_CASE("host stream: streams of another device are rejected", "[unit][host]") {
  const auto one = host::make_host_device({}), two = host::make_host_device({});
  const auto stream = one->create_stream(StreamKind::kCompute);
  const auto event = two->create_event();
  REQUIRE_THROWS_AS(two->record(*event, *stream), Error);
}
