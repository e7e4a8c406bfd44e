// Tests the PTX interpreter and its check of the order of accesses to shared memory. The expected
// results of the short programs follow from the manual (PTX ISA 9.0, section 9.7).

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "block.hpp"
#include "ptx/order.hpp"
#include "ptx/program.hpp"

using Catch::Contains;
namespace order = emulator::ptx::order;

namespace {

using Functions = std::vector<std::unique_ptr<emulator::ptx::Function>>;

Functions translated(const std::string& text) {
  return emulator::ptx::translate(emulator::ptx::read_module(text));
}

std::string kernel(const std::string& body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n"
         ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n"
         "\t.reg .pred \t%p<9>;\n\t.reg .b16 \t%rs<9>;\n\t.reg .b32 \t%r<9>;\n"
         "\t.reg .f32 \t%f<9>;\n\t.reg .b64 \t%rd<9>;\n\t.reg .f64 \t%fd<9>;\n"
         "\tld.param.u64 \t%rd0, [k_param_0];\n" +
         body + "\tret;\n}\n";
}

void run_threads(unsigned threads, size_t shared_bytes, const std::function<void()>& thread) {
  emulator::run_cluster(thread, {{uint3{}}, dim3(1), dim3(threads), shared_bytes});
}

/// Runs the module's last function on each thread. The function's argument is the address of
/// `memory`.
void run_kernel(const std::string& text, unsigned threads, void* memory, size_t shared_bytes = 0) {
  const Functions functions = translated(text);
  const emulator::ptx::Function& f = *functions.back();
  std::vector<std::vector<uint64_t>> slots(threads), locals(threads);
  auto address = reinterpret_cast<uint64_t>(memory);
  order::next_launch();
  run_threads(threads, f.static_bytes + shared_bytes, [&] {
    const unsigned t = threadIdx.x;
    slots[t].resize(f.values.size());
    locals[t].resize(f.local_bytes / 8 + 1);
    emulator::ptx::run(f, reinterpret_cast<unsigned char*>(&address),
                       reinterpret_cast<unsigned char*>(locals[t].data()), slots[t].data());
  });
}

/// Returns the value of %r1 of one thread after `body`.
uint32_t word_of(const std::string& body) {
  uint32_t word = 0;
  run_kernel(kernel(body + "\tst.u32 \t[%rd0], %r1;\n"), 1, &word);
  return word;
}
bool predicate_of(const std::string& body) {
  return word_of(body + "\tselp.u32 \t%r1, 1, 0, %p1;\n") != 0;
}
/// Returns the value of %rd1 of one thread after `body`.
uint64_t long_of(const std::string& body) {
  uint64_t word = 0;
  run_kernel(kernel(body + "\tst.u64 \t[%rd0], %rd1;\n"), 1, &word);
  return word;
}
float float_of(const std::string& body) {
  return std::bit_cast<float>(word_of(body + "\tmov.b32 \t%r1, %f1;\n"));
}

}  // namespace

TEST_CASE("ptx: whole numbers wrap around, and shifts past the width leave nothing", "[emulated]") {
  CHECK(word_of("add.s32 %r1, 2147483647, 1;") == 0x80000000u);
  CHECK(word_of("sub.s32 %r1, 3, 5;") == 0xfffffffeu);
  CHECK(word_of("mul.lo.s32 %r1, 65536, 65537;") == 0x10000u);
  CHECK(word_of("mad.lo.s32 %r1, -3, 5, 7;") == 0xfffffff8u);
  CHECK(word_of("div.s32 %r1, -7, 2;") == 0xfffffffdu);
  CHECK(word_of("div.u32 %r1, -7, 2;") == 0x7ffffffcu);
  CHECK(word_of("rem.s32 %r1, -7, 2;") == 0xffffffffu);
  CHECK(word_of("shl.b32 %r1, 1, 31;") == 0x80000000u);
  CHECK(word_of("shl.b32 %r1, 1, 32;") == 0);
  CHECK(word_of("shr.u32 %r1, -8, 1;") == 0x7ffffffcu);
  CHECK(word_of("shr.s32 %r1, -8, 1;") == 0xfffffffcu);
  CHECK(word_of("shr.s32 %r1, -8, 40;") == 0xffffffffu);
  CHECK(word_of("max.u32 %r1, -1, 5;") == 0xffffffffu);
  CHECK(word_of("max.s32 %r1, -1, 5;") == 5);
  CHECK(word_of("max.u16x2 %r1, 0x80000001, 0x7fff8000;") == 0x80008000u);
  CHECK(word_of("min.s16x2 %r1, 0x80000001, 0x7fff8000;") == 0x80008000u);
  CHECK(word_of("min.s16x2 %r1, 0xfffe7fff, 0xffff0005;") == 0xfffe0005u);
  CHECK(word_of("clz.b32 %r1, 65535;") == 16);
  CHECK(long_of("mul.wide.s32 %rd1, -2, 3;") == 0xfffffffffffffffaull);
  CHECK(long_of("mul.wide.u32 %rd1, -2, 3;") == 0x2fffffffaull);
  CHECK(long_of("cvt.s64.s32 %rd1, -2;") == 0xfffffffffffffffeull);
  CHECK(long_of("mov.u32 %r1, -2; cvt.u64.u32 %rd1, %r1;") == 0xfffffffeull);
  CHECK(long_of("bfi.b64 %rd1, 5, 255, 4, 4;") == 0x5f);
  CHECK(word_of("cvt.u16.u32 %rs1, 70000; cvt.u32.u16 %r1, %rs1;") == 4464);
}

TEST_CASE("ptx: bytes are permuted, words packed and taken apart, lowest part first",
          "[emulated]") {
  // Bytes 0 to 3 belong to the first operand, and bytes 4 to 7 to the second operand. 8 | k
  // replicates the sign of byte k.
  CHECK(word_of(
            "mov.u32 %r2, 0x33221100; mov.u32 %r3, 0x77665584; prmt.b32 %r1, %r2, %r3, 0x0527;") ==
        0x00552277u);
  CHECK(word_of(
            "mov.u32 %r2, 0x33221100; mov.u32 %r3, 0x77665584; prmt.b32 %r1, %r2, %r3, 0xc408;") ==
        0xff840000u);
  CHECK(word_of("mov.u16 %rs1, 1; mov.u16 %rs2, 2; mov.b32 %r1, {%rs1, %rs2};") == 0x20001u);
  CHECK(long_of("mov.u32 %r1, 3; mov.u32 %r2, 4; mov.b64 %rd1, {%r1, %r2};") == 0x400000003ull);
  CHECK(word_of("mov.u64 %rd1, 0x500000006; { .reg .b32 %temp; mov.b64 {%temp, %r1}, %rd1; }") ==
        5);
  // The first float becomes the upper half. 3.0078125 is halfway between two bf16 values, and
  // rounding chooses the even value.
  CHECK(word_of(
            "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40408000; cvt.rn.bf16x2.f32 %r1, %f1, %f2;") ==
        0x3f804040u);
  CHECK(word_of(
            "mov.f32 %f1, 0fC0000000; mov.f32 %f2, 0f3F800000; cvt.rn.f16x2.f32 %r1, %f1, %f2;") ==
        0xc0003c00u);
}

TEST_CASE("ptx: floats are rounded one operation at a time, and NaN is unordered", "[emulated]") {
  const std::string nan = "mov.f32 %f1, 0f7FC00000; mov.f32 %f2, 0f3F800000; ";
  CHECK_FALSE(predicate_of(nan + "setp.eq.f32 %p1, %f1, %f2;"));
  CHECK_FALSE(predicate_of(nan + "setp.ne.f32 %p1, %f1, %f2;"));
  CHECK_FALSE(predicate_of(nan + "setp.lt.f32 %p1, %f1, %f2;"));
  CHECK(predicate_of(nan + "setp.neu.f32 %p1, %f1, %f2;"));
  CHECK(predicate_of(nan + "setp.leu.f32 %p1, %f1, %f2;"));
  CHECK_FALSE(predicate_of(nan + "setp.num.f32 %p1, %f1, %f2;"));
  // (1 + 2^-23)^2 - (1 + 2^-22) is 2^-46 if the product is not rounded before the subtraction.
  const std::string square = "mov.f32 %f2, 0f3F800001; mov.f32 %f3, 0fBF800002; ";
  CHECK(float_of(square + "fma.rn.f32 %f1, %f2, %f2, %f3;") == 0x1p-46f);
  CHECK(float_of(square + "mul.rn.f32 %f1, %f2, %f2; add.rn.f32 %f1, %f1, %f3;") == 0.0f);
  CHECK(float_of("mov.f32 %f1, 0f00000001; add.rn.f32 %f1, %f1, %f1;") == 0x1p-148f);
  CHECK(std::isnan(float_of("add.rn.f32 %f1, %f5, %f5;")));  // the register has never been written
  CHECK(float_of("cvt.rn.f32.u16 %f1, 65535;") == 65535.0f);
  CHECK(float_of("mov.u16 %rs1, 0x3555; cvt.f32.f16 %f1, %rs1;") == 0x1.554p-2f);
}

TEST_CASE("ptx: predicates guard, labels loop, scopes hide, functions return", "[emulated]") {
  CHECK(word_of("mov.u32 %r1, 0; mov.u32 %r2, 0;\nagain:\n\tadd.s32 %r1, %r1, %r2;\n"
                "add.s32 %r2, %r2, 1;\n\tsetp.lt.s32 %p1, %r2, 5;\n@%p1 bra again;\n") == 10);
  CHECK(word_of("mov.u32 %r1, 1; setp.eq.s32 %p1, %r1, 2; @%p1 mov.u32 %r1, 7; "
                "@!%p1 mov.u32 %r1, 8;") == 8);
  CHECK(word_of("mov.u32 %r1, 1; { .reg .b32 %r1; mov.u32 %r1, 2; }") == 1);
  const std::string twice =
      ".func (.param .b64 result) twice(\n.param .b64 value\n)\n;\n"
      ".func (.param .b64 result) twice(\n.param .b64 value\n)\n{\n.reg .b64 %rd<2>;\n"
      "ld.param.u64 %rd1, [value];\nadd.s64 %rd1, %rd1, %rd1;\nst.param.b64 [result+0], %rd1;\n"
      "ret;\n}\n";
  uint64_t word = 0;
  std::string text = kernel(
      "{ .param .b64 param0; mov.u64 %rd2, 21; st.param.b64 [param0+0], %rd2; .param .b64 retval0;"
      "call.uni (retval0), twice, (param0); ld.param.b64 %rd1, [retval0+0]; }\n"
      "st.u64 [%rd0], %rd1;");
  run_kernel(text.insert(text.find(".visible"), twice), 1, &word);
  CHECK(word == 42);
}

TEST_CASE("ptx: vectors are read and written whole, at multiples of their size", "[emulated]") {
  alignas(16) std::array<uint32_t, 9> words = {1, 2, 3, 4, 5, 6, 7, 8, 0x80};
  run_kernel(kernel("ld.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0];\n"
                    "st.v4.u32 [%rd0+16], {%r4, %r3, %r2, %r1};\n"
                    "ld.s8 %r5, [%rd0+32]; st.u32 [%rd0+32], %r5;"),
             1, words.data());
  CHECK(words == std::array<uint32_t, 9>{1, 2, 3, 4, 4, 3, 2, 1, 0xffffff80u});
  CHECK_THROWS_WITH(run_kernel(kernel("ld.v2.u32 {%r1, %r2}, [%rd0+4];"), 1, words.data()),
                    Contains("not aligned") && Contains("ld.v2.u32"));
  CHECK_THROWS_WITH(
      run_kernel(kernel("mov.u32 %r1, 64; st.shared.u32 [%r1], %r1;"), 1, words.data(), 64),
      Contains("beyond the block's shared memory"));
}

TEST_CASE("ptx: unknown text is rejected before a kernel runs", "[emulated]") {
  CHECK_THROWS_WITH(translated(kernel("frob.u32 %r1, %r2;")), Contains("frob.u32 %r1, %r2"));
  CHECK_THROWS_WITH(translated(kernel("add.s32 %r1, %r2, %r77;")), Contains("%r77"));
  CHECK_THROWS_WITH(translated(kernel("bra nowhere;")), Contains("bra nowhere"));
  CHECK_THROWS_WITH(translated(kernel("a:\na:\n")), Contains("twice"));
  CHECK_THROWS_WITH(translated(kernel("@%q add.s32 %r1, %r1, 1;")), Contains("predicate"));
}

TEST_CASE("ptx: unordered accesses of threads to a word are found in any schedule", "[emulated]") {
  const std::string mine = "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; st.shared.u32 [%r2], %r1;\n";
  const std::string next = "xor.b32 %r2, %r2, 4; ld.shared.u32 %r3, [%r2];\n";
  uint32_t unused = 0;
  const auto run = [&](const std::string& body) { run_kernel(kernel(body), 64, &unused, 256); };
  CHECK_NOTHROW(run(mine + "bar.sync 0;\n" + next));
  const auto race = Catch::Matches(".*(may not be written yet|may still be read).*");
  CHECK_THROWS_WITH(run(mine + next), race);
  CHECK_NOTHROW(run(mine + "bar.warp.sync 0xffffffff;\n" + next));
  CHECK_THROWS_WITH(
      run(mine + "bar.sync 0;\n" + next + "xor.b32 %r2, %r2, 4; st.shared.u32 [%r2], %r3;\n"),
      race);
  CHECK_THROWS_WITH(run("mov.u32 %r1, 0; st.shared.u32 [%r1], %r1;"),
                    Contains("unordered with another"));
  CHECK_NOTHROW(run("mov.u32 %r1, 0; atom.shared.add.u32 %r2, [%r1], 1;"));
  // Both warps execute an atomic operation, and then one thread reads. The read must be ordered
  // after both operations, not only after the operation of its own warp.
  const std::string both = "mov.u32 %r1, 0; atom.shared.add.u32 %r2, [%r1], 1;\n";
  const std::string of_last =
      "mov.u32 %r4, %tid.x; setp.eq.s32 %p1, %r4, 63;\n"
      "@%p1 ld.shared.u32 %r3, [%r1];\n";
  CHECK_NOTHROW(run(both + "bar.sync 0;\n" + of_last));
  CHECK_THROWS_WITH(run(both + "bar.warp.sync 0xffffffff;\n" + of_last),
                    Contains("may not be written yet") || Contains("unordered with another") ||
                        Contains("may still be read"));
}

TEST_CASE("ptx: unordered accesses of thread blocks to a word are found, except atomic ones",
          "[emulated]") {
  if (!std::getenv("MUONRT_EMULATED_RACES")) return;  // full.ptx and ptx.ptx set this variable
  std::array<uint32_t, 4> words = {};
  const auto run = [&](const std::string& body) {
    order::next_launch();
    const Functions functions = translated(kernel(body));
    std::vector<uint64_t> slots(functions.back()->values.size());
    auto address = reinterpret_cast<uint64_t>(words.data());
    for (unsigned block = 0; block < 2; ++block)
      emulator::run_cluster(
          [&] {
            emulator::ptx::run(*functions.back(), reinterpret_cast<unsigned char*>(&address),
                               nullptr, slots.data());
          },
          {{uint3{block, 0, 0}}, dim3(2), dim3(1), 0});
  };
  const std::string own =
      "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;";
  CHECK_NOTHROW(run(own + "st.global.u32 [%rd1], %r1; ld.global.u32 %r2, [%rd1];"));
  CHECK_NOTHROW(run("ld.global.u32 %r2, [%rd0];"));
  CHECK_NOTHROW(run("atom.global.add.u32 %r2, [%rd0], 1;"));
  CHECK_THROWS_WITH(run("mov.u32 %r1, 7; st.global.u32 [%rd0], %r1;"),
                    Contains("unordered with another"));
  CHECK_THROWS_WITH(run(own + "st.global.u32 [%rd1], %r1; ld.global.u32 %r2, [%rd0];"),
                    Contains("not have written yet"));
  CHECK_THROWS_WITH(run(own + "ld.global.u32 %r2, [%rd0+4]; st.global.u32 [%rd1], %r1;"),
                    Contains("may still read"));
  CHECK_THROWS_WITH(run("atom.global.add.u32 %r2, [%rd0], 1; st.global.u32 [%rd0], %r2;"),
                    Contains("unordered with another"));
  CHECK_THROWS_WITH(run("atom.global.add.u32 %r2, [%rd0], 1; mov.u32 %r1, %ctaid.x;\n"
                        "setp.eq.s32 %p1, %r1, 1; @%p1 ld.global.u32 %r3, [%rd0];"),
                    Contains("not have written yet"));
}

TEST_CASE("ptx: data that the engines read must be written, fenced, and ordered by a barrier",
          "[emulated]") {
  const auto run = [](bool fences, bool synchronizes, bool waits) {
    run_threads(128, 4096, [=] {
      const size_t mine = threadIdx.x * 32;
      order::access(0, mine, 32, order::Access::kWrite);
      if (fences) order::fence();
      if (synchronizes) {
        order::arrive(order::of_block(0));
        __syncthreads();
        order::depart(order::of_block(0));
      }
      order::product_read(0, 4096);
      order::products_commit();
      if (waits) order::products_wait(0);
      order::arrive(order::of_block(0));
      __syncthreads();
      order::depart(order::of_block(0));
      order::access(0, mine, 32, order::Access::kWrite);
    });
  };
  CHECK_NOTHROW(run(true, true, true));
  CHECK_THROWS_WITH(run(false, true, true), Contains("without a fence"));
  CHECK_THROWS_WITH(run(true, false, true),
                    Contains("may not be written yet") || Contains("may still be read"));
  CHECK_THROWS_WITH(run(true, true, false), Contains("may still be read"));
}
