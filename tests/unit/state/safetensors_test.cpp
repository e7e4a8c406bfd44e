#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "state/tensor_file.hpp"
#include "support/folder.hpp"

using namespace muonrt;
using Catch::Contains;
using test_support::Folder;

namespace {

std::string length_of(size_t bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(bytes >> (8 * i) & 0xff);
  return out;
}

/// Returns the content of a file with this header and this data.
std::string file_of(const std::string& header, const std::string& data) {
  return length_of(header.size()) + header + data;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

std::string rejection(const std::string& header, int64_t data_bytes) {
  return message_of([&] { parse_tensor_table(header, data_bytes, "f"); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  int64_t begin, int64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string text_of(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("safetensors: every dtype of the format has its number of bits", "[unit][state]") {
  // The dtypes of the format, each with its number of bits per element. Eight elements need
  // this number of bytes.
  const std::vector<std::pair<const char*, int64_t>> bits = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  for (const auto& [dtype, size] : bits) {
    INFO(dtype);
    const TensorTable table =
        parse_tensor_table("{" + entry("a", dtype, "[2,4]", 0, size) + "}", size, "f");
    CHECK(table.entries.at(0).elements() == 8);
    CHECK_THAT(rejection("{" + entry("a", dtype, "[2,4]", 0, size + 1) + "}", size + 1),
               Contains("span"));
  }
  CHECK_THAT(rejection("{" + entry("a", "F4", "[3]", 0, 1) + "}", 1), Contains("whole number of"));
  CHECK_THAT(rejection("{" + entry("a", "F6_E2M3", "[2]", 0, 1) + "}", 1),
             Contains("whole number"));
  CHECK_THAT(rejection("{" + entry("a", "F5", "[8]", 0, 5) + "}", 5), Contains("'F5' is unknown"));
}

TEST_CASE("safetensors: a header is one object, without NUL, byte order mark or repeated names",
          "[unit][state]") {
  const std::string a = entry("a", "U8", "[1]", 0, 1);
  CHECK(rejection("{" + a + "}   ", 1) == "no error");
  CHECK(rejection("{\"__metadata__\":null," + a + "}", 1) == "no error");
  CHECK_THAT(rejection("\xef\xbb\xbf{" + a + "}", 1), Contains("byte order mark"));
  CHECK_THAT(rejection("{" + a + "}" + std::string(2, '\0'), 1), Contains("NUL"));
  CHECK_THAT(rejection(" {" + a + "}", 1), Contains("first byte"));
  CHECK_THAT(rejection("{" + entry("a\\u0000b", "U8", "[1]", 0, 1) + "}", 1),
             Contains("'a\\x00b'") && Contains("NUL"));
  CHECK_THAT(rejection("{" + a + "," + a + "}", 1), Contains("'a' occurs twice"));
  CHECK_THAT(rejection("{\"__metadata__\":{\"x\":null}," + a + "}", 1),
             Contains("'x' is not a string"));
}

TEST_CASE("safetensors: a header is read back unchanged, or is not written", "[unit][state]") {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"q\"", "\n\xc3\xa4"}};
  std::vector<TensorEntry> entries = {
      {"w/\"1\"", "F32", {2, 3}, 0, 24}, {"e", "F4", {0, 7}, 0, 0}, {"s", "I64", {}, 0, 8}};
  const std::string header = tensor_header(entries, metadata, "f");
  CHECK(header.size() % 8 == 0);
  CHECK(header.substr(0, 8) == length_of(header.size() - 8));
  const TensorTable table = parse_tensor_table(header.substr(8), 32, "f");
  CHECK(table.metadata == metadata);
  REQUIRE(table.entries.size() == 3);
  for (const TensorEntry& e : entries) {
    const TensorEntry* found = table.find(e.name);
    REQUIRE(found);
    CHECK(found->dtype == e.dtype);
    CHECK(found->shape == e.shape);
    CHECK(found->begin == e.begin);
  }
  const auto rejected = [](std::vector<TensorEntry> list,
                           const std::map<std::string, std::string>& more = {}) {
    return message_of([&] { tensor_header(list, more, "f"); });
  };
  CHECK_THAT(rejected({{"a", "U8", {1}, 0, 1}, {"a", "U8", {1}, 0, 1}}), Contains("twice"));
  CHECK_THAT(rejected({{"\xff", "U8", {1}, 0, 1}}), Contains("not UTF-8"));
  CHECK_THAT(rejected({{std::string("a\0b", 3), "U8", {1}, 0, 1}}), Contains("NUL"));
  CHECK_THAT(rejected({{"__metadata__", "U8", {1}, 0, 1}}), Contains("__metadata__"));
  CHECK_THAT(rejected({{"a", "U8", {2}, 0, 1}}), Contains("span 1"));
  CHECK_THAT(rejected({{"a", "F5", {1}, 0, 1}}), Contains("unknown"));
  CHECK_THAT(rejected({}, {{"k", "\xff"}}), Contains("metadata"));
}

TEST_CASE("safetensors: a folder, an index or a file is read as one model", "[unit][state]") {
  const Folder folder;
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary) << text;
  };
  put("a.safetensors",
      file_of("{\"__metadata__\":{\"x\":\"1\",\"y\":\"2\"}," + entry("w", "U8", "[2]", 0, 2) + "}",
              "12"));
  put("b.safetensors",
      file_of("{\"__metadata__\":{\"x\":\"1\",\"y\":\"3\"}," + entry("v", "U8", "[1]", 0, 1) + "}",
              "3"));
  put("notes.txt", "nothing");
  const TensorModel model(folder.path());
  REQUIRE(model.table().entries.size() == 2);
  CHECK(model.table().entries[0].name == "w");
  CHECK(text_of(model.bytes(model.at("w"))) == "12");
  CHECK(text_of(model.bytes(model.at("v"))) == "3");
  CHECK(model.table().metadata == std::map<std::string, std::string>{{"x", "1"}});
  CHECK(TensorModel(folder.path() + "/b.safetensors").table().entries.size() == 1);

  const auto problem = [&](const std::string& name = "") {
    return message_of([&] { TensorModel(folder.path() + "/" + name); });
  };
  const std::string index = "model.safetensors.index.json";
  put(index, R"({"weight_map":{"v":"b.safetensors"}})");
  CHECK(TensorModel(folder.path()).table().entries.size() == 1);
  CHECK(TensorModel(folder.path() + "/" + index).table().entries.size() == 1);
  put(index, R"({"weight_map":{"v":"a.safetensors"}})");
  CHECK_THAT(problem(), Contains("'v' is not in 'a.safetensors'"));
  put(index, R"({"weight_map":{"v":"b.safetensors","u":"b.safetensors"}})");
  CHECK_THAT(problem(), Contains("'u'"));
  put(index, R"({"weight_map":{"v":"../b.safetensors"}})");
  CHECK_THAT(problem(), Contains("without '/'"));
  put(index, R"({"weights":{}})");
  CHECK_THAT(problem(), Contains("no object 'weight_map'"));
  std::filesystem::remove(folder.path() + "/" + index);
  put("c.safetensors", file_of("{" + entry("v", "U8", "[1]", 0, 1) + "}", "4"));
  CHECK_THAT(problem(), Contains("'v'") && Contains("b.safetensors") && Contains("c.safetensors"));
  CHECK_THAT(problem("none.safetensors"), Contains("cannot be opened"));
  CHECK_THAT(problem("notes.txt"), Contains("fewer than") || Contains("header should have"));
}

TEST_CASE("safetensors: a model may have more files than a process may open",
          "[unit][state][nosan]") {
  const Folder folder;
  constexpr int kFiles = 60;
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = "t" + std::to_string(i);
    std::ofstream(folder.path() + "/" + name + ".safetensors", std::ios::binary)
        << file_of("{" + entry(name, "U8", "[1]", 0, 1) + "}", "x");
  }
  struct rlimit before;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const struct rlimit few = {40, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::string found, problem;
  try {
    const TensorModel model(folder.path());
    for (const TensorEntry& e : model.table().entries) found += text_of(model.bytes(e));
  } catch (const Error& e) {
    problem = e.message();
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(problem == "");
  CHECK(found.size() == kFiles);
}
