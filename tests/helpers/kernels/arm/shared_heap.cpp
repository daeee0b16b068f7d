// Takes the place of malloc in a process (LD_PRELOAD): everything lies in memory that another process can map at the
// same address, so that pointers mean the same in both. Blocks are of powers of two and are used again, never returned.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr uintptr_t BASE = 0x100000000000;
constexpr size_t SIZE = size_t{1} << 36, ALIGN = 64;

struct Header {  // before each block that malloc returns
  char* block;   // where the memory begins
  size_t order;  // it has 2^order bytes
};

std::atomic_flag locked = ATOMIC_FLAG_INIT;
int memory = -1;
size_t used = 0;
char* unused[64];  // blocks of each order that were freed; each holds the address of the next

struct Lock {
  Lock() {
    while (locked.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Lock() { locked.clear(std::memory_order_release); }
};

bool map_memory() {
  memory = memfd_create("shared_heap", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, SIZE) != 0) return false;
  void* wanted = reinterpret_cast<void*>(BASE);
  return mmap(wanted, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, memory, 0) == wanted;
}

char* take(size_t order) {
  const Lock lock;
  if (memory < 0 && !map_memory()) return nullptr;
  if (char* found = unused[order]) {
    std::memcpy(&unused[order], found, sizeof found);
    return found;
  }
  if (SIZE - used < size_t{1} << order) return nullptr;
  char* found = reinterpret_cast<char*>(BASE + used);
  used += size_t{1} << order;
  return found;
}

Header& header_of(void* p) { return static_cast<Header*>(p)[-1]; }
size_t space_of(void* p) { return header_of(p).block + (size_t{1} << header_of(p).order) - static_cast<char*>(p); }

void* allocate(size_t align, size_t bytes) {
  if (align < ALIGN) align = ALIGN;
  if (bytes > SIZE / 2 || align > SIZE / 4) return errno = ENOMEM, nullptr;
  size_t order = 7;
  while ((size_t{1} << order) < bytes + align + sizeof(Header)) order++;
  char* block = take(order);
  if (block == nullptr) return errno = ENOMEM, nullptr;
  void* p = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(block) + sizeof(Header) + align - 1) / align * align);
  header_of(p) = {block, order};
  return p;
}

}  // namespace

extern "C" {

int shared_heap_file() { return memory; }
void* shared_heap_base() { return reinterpret_cast<void*>(BASE); }
size_t shared_heap_size() { return SIZE; }

void* malloc(size_t bytes) { return allocate(ALIGN, bytes); }
void free(void* p) {
  if (p == nullptr) return;
  const Header header = header_of(p);
  const Lock lock;
  std::memcpy(header.block, &unused[header.order], sizeof(char*));
  unused[header.order] = header.block;
}
void* calloc(size_t count, size_t bytes) {
  size_t all;
  if (__builtin_mul_overflow(count, bytes, &all)) return errno = ENOMEM, nullptr;
  void* p = allocate(ALIGN, all);
  return p ? std::memset(p, 0, all) : nullptr;
}
void* realloc(void* p, size_t bytes) {
  if (p != nullptr && bytes <= space_of(p)) return p;
  void* grown = allocate(ALIGN, bytes);
  if (p == nullptr || grown == nullptr) return grown;
  std::memcpy(grown, p, space_of(p));
  free(p);
  return grown;
}
int posix_memalign(void** to, size_t align, size_t bytes) {
  void* p = allocate(align, bytes);
  if (p == nullptr) return ENOMEM;
  *to = p;
  return 0;
}
void* aligned_alloc(size_t align, size_t bytes) { return allocate(align, bytes); }
void* memalign(size_t align, size_t bytes) { return allocate(align, bytes); }
void* valloc(size_t bytes) { return allocate(4096, bytes); }
size_t malloc_usable_size(void* p) { return p == nullptr ? 0 : space_of(p); }

}  // extern "C"
