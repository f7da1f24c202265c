
customer-42 ¿ñÂ±4".
$63f0369b-1de8-5c0b-8ec7-70638b231358 *paid